"""Scores of an evaluation in TensorBoard and Weights & Biases, where these are configured.

Both get each score that has a number, with the ends of its interval, at the step of the model's checkpoint: so the
evaluations of the checkpoints of one training are a curve.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Final

from tradewind.datasets.files import basename
from tradewind.evaluation.config import EvaluationConfig
from tradewind.evaluation.results import EvaluationRecord
from tradewind.recipes.metrics.trackers import WandbOptions, tensorboard_path, wandb_folder
from tradewind.storage.trees import upload_files
from tradewind.text import single_line

_STEP: Final = re.compile(r"step-(\d{1,15})(?![^/])")
"""Part of the path of a checkpoint or an export."""
_PREFIX: Final = "eval"
_MAX_RUN_ID: Final = 64


def check_trackers(config: EvaluationConfig) -> None:
    """Refuse a tracker whose library is missing, before a model is served; raises ``ValueError``."""
    for field, module, is_wanted in (
        ("tensorboard", "tensorboardX", config.tensorboard),
        ("wandb", "wandb", _wandb_options(config) is not None),
    ):
        if is_wanted and importlib.util.find_spec(module) is None:
            raise ValueError(f"{field} needs {module}, which is not installed on this cluster: use an image for TPUs.")


def report_scores(record: EvaluationRecord, config: EvaluationConfig) -> None:
    """Send the scores of a record to the trackers."""
    values, step = tracked_scores(record), checkpoint_step(record.model.path)
    if config.tensorboard:
        _write_events(values, step, config.evaluation_path)
    if (options := _wandb_options(config)) is not None:
        _send(values, step, record, config.evaluation_path, options)


def _wandb_options(config: EvaluationConfig) -> WandbOptions | None:
    """Return the run at W&B with all its tags; None without one."""
    if config.wandb is None or config.wandb.mode == "disabled":
        return None
    return dataclasses.replace(config.wandb, tags=[*config.wandb.tags, *(config.wandb_tags or ())])


def tracked_scores(record: EvaluationRecord) -> dict[str, float]:
    """Return ``eval/TASK/METRIC`` → number, and the ends of its interval as ``…/low`` and ``…/high``."""
    found: dict[str, float] = {}
    for name, task in record.entries():
        for score in task.scores:
            place = f"{_PREFIX}/{name}/{score.metric}"
            ends = {place: score.value, f"{place}/low": score.low, f"{place}/high": score.high}
            found |= {each: value for each, value in ends.items() if value is not None}
    return found


def checkpoint_step(model_path: str) -> int:
    """Return the number of steps in the path of a checkpoint or an export; 0 without one."""
    found = _STEP.findall(model_path)
    return int(found[-1]) if found else 0


def _write_events(values: dict[str, float], step: int, output_path: str) -> None:
    """Write TensorBoard's file of events in the folder that a training has it in, on any store."""
    from tensorboardX import SummaryWriter  # type: ignore[import-untyped]

    with tempfile.TemporaryDirectory(prefix="tradewind-events-") as folder:
        with SummaryWriter(folder, write_to_disk=True) as writer:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
        upload_files(Path(folder), tensorboard_path(output_path))


def _send(
    values: dict[str, float], step: int, record: EvaluationRecord, output_path: str, options: WandbOptions
) -> None:
    """Send the scores to W&B as a run of the output's name; offline, its files are kept beside the record.

    The record has the scores already, so an evaluation does not fail if W&B does not answer.
    """
    import wandb

    mode: Any = os.environ.get("WANDB_MODE", options.mode)
    about: dict[str, Any] = {"model": record.model.path, "evaluation": record.evaluation, "output_path": output_path}
    try:
        run = wandb.init(
            id=basename(output_path)[-_MAX_RUN_ID:],
            project=options.project,
            entity=options.entity,
            name=options.name or basename(output_path),
            group=options.group,
            tags=list(options.tags),
            mode=mode,
            dir=wandb_folder(output_path),
            config=about,
            resume="allow" if mode == "online" else None,
        )
        run.log(values, step=step)
        run.finish()
    except wandb.Error as error:
        print(f"The scores were not sent to W&B: {single_line(error)}", flush=True)
