"""Write the results of a speedrun as one JSON file: its author, config, cost and quality.

The file has the fields of Marin's ``speedrun_results.json`` of November 2025, so its leaderboard reads it. Marin asks
W&B for some numbers; here all come from the result and the metrics of the training. Each kind of training writes them
when it ends, with its devices, so no later process computes them again.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tradewind.cloud_tpu.goodput import STEP_SECONDS
from tradewind.datasets.files import basename, join, parent, write_text
from tradewind.recipes.metrics.file import is_measure, read_bounded_metrics, series
from tradewind.recipes.stored_json import read_object
from tradewind.recipes.train_config import metrics_path, result_path
from tradewind.records.parsing import (
    COUNT,
    MOMENT,
    NUMBER,
    OBJECT,
    FieldType,
)
from tradewind.records.parsing import TEXT as RECORD_TEXT
from tradewind.steps.fields import PATH, SOME_TEXT, TEXT, check_fields
from tradewind.text import single_line

RESULTS_FILE: Final = "speedrun_results.json"
C4_BITS_PER_BYTE: Final = "eval/paloma/c4_en/bpb"
"""Marin's ranking metric, if a training has that validation set."""
_RETURNED: Final = ("author", "description")
"""Fields of the file that the step returns for the board, beside the numbers."""
_LOSS: Final = FieldType(lambda value: value is None or is_measure(value), "a number or null")
_KINDS: Final = {
    **dict.fromkeys(("parameters", "tokens", "steps", "first_step"), COUNT),
    **dict.fromkeys(("flops", "device_flops"), NUMBER.or_null()),
    **dict.fromkeys(("train_loss", "eval_loss"), _LOSS),
    "devices": COUNT.or_null(),
    "device_kind": RECORD_TEXT.or_null(),
    "settings": OBJECT.or_null(),
}
"""Fields of ``result.json``."""


@dataclass(frozen=True)
class TrainingMeasures:
    """The measures of one training.

    Attributes:
        parameters: Number of the model's parameters.
        tokens: Number of training tokens.
        model_flops: Floating-point operations of the whole training, forward and backward; None if unknown.
        devices: Devices of all hosts at the end of the training.
        device_kind: JAX's name of it.
        device_flops: Peak operations per second of one device in bfloat16, by Levanter's table; None without an entry,
            as for a CPU.
        seconds: Time of all steps with loading of batches, without compilation, validation and checkpoints.
        completed: End of the last step, in seconds since 1970.
        train_loss, eval_loss: Losses of the last step, in nats per token; None if not measured.
        c4_bits_per_byte: For Paloma's C4 in English, if validated on.
        settings: Settings of the training.
    """

    parameters: int
    tokens: int
    model_flops: float | None
    devices: int | None
    device_kind: str | None
    device_flops: float | None
    seconds: float
    completed: float
    train_loss: float | None
    eval_loss: float | None
    c4_bits_per_byte: float | None
    settings: Mapping[str, Any]

    @property
    def hardware_flops(self) -> float | None:
        """Return the peak operations of the devices in that time."""
        if self.devices is None or self.device_flops is None:
            return None
        return self.seconds * self.devices * self.device_flops

    @property
    def utilisation(self) -> float | None:
        """Return the model FLOPs utilisation, between 0 and 1."""
        if self.model_flops is None or not self.hardware_flops:
            return None
        return self.model_flops / self.hardware_flops

    def numbers(self) -> dict[str, Any]:
        """Return the numbers by Marin's names, and ``mfu`` and the losses, which Marin's results lack."""
        return {
            "model_size": self.parameters,
            "total_tokens": self.tokens,
            "model_flops": self.model_flops,
            "num_devices": self.devices,
            "num_chips": self.devices,
            "device_flops": self.device_flops,
            "training_time": self.seconds,
            "training_hardware_flops": self.hardware_flops,
            C4_BITS_PER_BYTE: self.c4_bits_per_byte,
            "mfu": self.utilisation,
            "train_loss": self.train_loss,
            "eval_loss": self.eval_loss,
            "run_completion_timestamp": f"{datetime.datetime.fromtimestamp(self.completed, datetime.UTC):%F %T UTC}",
        }


def measures_of(train_path: str) -> TrainingMeasures:
    """Read the measures of the training with that output.

    Raises:
        ValueError: It has not ended, is no training, or is too short for a timed step.
    """
    result = read_object(result_path(train_path), _KINDS, ("parameters", "tokens", "steps"))
    metrics = read_bounded_metrics(metrics_path(train_path))
    if result is None or metrics is None:
        raise ValueError(
            f"{train_path} is no output of a finished training: give one of train, train_mixture or "
            "run_levanter_train_lm, which ends with result.json beside metrics.jsonl."
        )
    bits = series(metrics, C4_BITS_PER_BYTE)[1]
    return TrainingMeasures(
        parameters=result["parameters"],
        tokens=result["tokens"],
        model_flops=result.get("flops"),
        devices=result.get("devices"),
        device_kind=result.get("device_kind"),
        device_flops=result.get("device_flops"),
        seconds=_seconds(train_path, metrics, result["steps"] - result.get("first_step", 0)),
        completed=max((row["time"] for row in metrics if MOMENT.fits(row.get("time"))), default=0.0),
        train_loss=_finite(result.get("train_loss")),
        eval_loss=_finite(result.get("eval_loss")),
        c4_bits_per_byte=_finite(bits[-1]) if bits else None,
        settings=result.get("settings") or {},
    )


def _seconds(train_path: str, metrics: list[dict[str, Any]], steps: int) -> float:
    """Return the time of all steps. The first two, and the first of each attempt, count with the mean of the others."""
    timed = [seconds for seconds in series(metrics, STEP_SECONDS)[1] if 0 < seconds < math.inf]
    if not timed:
        raise ValueError(f"{train_path}: no step was timed; train for four steps at least, since the first are not.")
    return sum(timed) / len(timed) * steps


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class SpeedrunReportConfig:
    """Training and author of ``report_speedrun``."""

    train_path: str
    """Output of a training."""
    output_path: str
    """Gets ``speedrun_results.json``."""
    author: str = ""
    affiliation: str = ""
    url: str | None = None
    """Page of the author."""
    summary: str = ""
    """One sentence on what is new."""

    def __post_init__(self) -> None:
        names = dict.fromkeys(("affiliation", "summary"), TEXT)
        check_fields(self, train_path=PATH, output_path=PATH, author=SOME_TEXT, **names, url=TEXT.or_none())


def report_speedrun(config: SpeedrunReportConfig) -> dict[str, Any]:
    """Write the file; return author, description and the numbers, by their names in it.

    Raises:
        ValueError: ``train_path`` is no output of a finished training, or of one too short to be timed.
    """
    measured = measures_of(config.train_path)
    settings = measured.settings
    about = {
        "author": {"name": config.author, "affiliation": config.affiliation, "url": config.url},
        "description": config.summary,
        "model_config": {name: settings.get(name) for name in ("model_size", "model")},
        "train_config": settings,
        "tokenized_dataset": settings.get("cache_path"),
        "resources": {"device_kind": measured.device_kind, "num_devices": measured.devices},
        "wandb_run_link": None,
    }
    return _write(join(config.output_path, RESULTS_FILE), about, measured)


def report_marins_speedrun(config: Any) -> dict[str, Any]:
    """Write the file of Marin's ``SpeedrunResultsConfig``, which goes into the output of the training.

    The numbers are of the training and the devices that ran, and not from the config.

    Raises:
        ValueError: There is no finished training at that path, or one too short to be timed.
    """
    measured = measures_of(parent(config.output_path))
    run = basename(config.wandb_run_id)
    about = {
        **config.speedrun_config.as_json_dict(),
        "wandb_run_link": f"https://wandb.ai/{config.wandb_entity}/{config.wandb_project}/runs/{run}",
    }
    return _write(config.output_path, about, measured)


def _write(path: str, about: Mapping[str, Any], measured: TrainingMeasures) -> dict[str, Any]:
    run_info = {**about, **measured.numbers()}
    content = json.dumps({"runs": [{"run_info": run_info}]}, indent=2, sort_keys=True, default=str)
    write_text(path, f"{content}\n")
    bits = run_info[C4_BITS_PER_BYTE]
    print("\n".join(_lines(measured) + ([] if bits is None else [f"  C4: {bits:.4f} bits per byte"])), flush=True)
    return {name: about[name] for name in _RETURNED} | measured.numbers()


def _lines(measured: TrainingMeasures) -> list[str]:
    """Return the lines for the task log."""
    flops = "unknown" if measured.model_flops is None else f"{measured.model_flops:.3g}"
    share = "" if measured.utilisation is None else f", {measured.utilisation:.1%} of what the devices can do"
    loss = "not measured" if measured.eval_loss is None else f"{measured.eval_loss:.4f}"
    devices = f"{measured.devices} × {single_line(measured.device_kind)}"
    return [
        f"{measured.parameters:,} parameters, {measured.tokens:,} tokens, validation loss {loss}",
        f"  {measured.seconds:.1f} s on {devices}; model FLOPs: {flops}{share}",
    ]
