"""Who hears of a training's measures: our metrics file, and what the config names of that which can be used here."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Final

from tradewind.datasets.files import basename
from tradewind.recipes.metrics.trackers import tensorboard_path, wandb_folder
from tradewind.recipes.metrics.tracking import TrackingOptions, tracker_config
from tradewind.recipes.train_config import metrics_path

WITHOUT_KEY: Final = ("offline", "disabled", "dryrun")
"""Modes of W&B that ask nobody."""


def with_all_trackers(
    made: Any, output_path: str, first_step: int, together: int = 1, also_kept: tuple[str, ...] = ()
) -> Any:
    """The same config with its trackers placed under the output, and ours.

    Args:
        made: The config.
        output_path: Of the training.
        first_step: The one to go on with.
        together: Sequences in each example of a step.
        also_kept: What is kept besides the losses, as patterns.
    """
    given = made.trainer.tracker
    placed = [_placed(each, output_path, first_step) for each in (given if isinstance(given, Sequence) else [given])]
    options = dataclasses.replace(_options(made, output_path, together), also_kept=also_kept)
    trackers = [tracker_config(options), *(each for each in placed if each is not None)]
    return dataclasses.replace(made, trainer=dataclasses.replace(made.trainer, tracker=tuple(trackers)))


def _placed(tracker: Any, output_path: str, first_step: int) -> Any:
    """None for one that cannot be used, or not in this process."""
    import jax
    from levanter.tracker.tensorboard import TensorboardConfig
    from levanter.tracker.wandb import WandbConfig

    if isinstance(tracker, WandbConfig):
        return _wandb(tracker, output_path)
    if isinstance(tracker, TensorboardConfig):
        is_first = jax.process_index() == 0
        path = tensorboard_path(output_path)
        return dataclasses.replace(tracker, logdir=path, purge_step=first_step) if is_first else None
    return tracker


def _wandb(tracker: Any, output_path: str) -> Any:
    """On all hosts, as they exchange the run's id."""
    import jax

    mode = os.environ.get("WANDB_MODE") or tracker.mode
    if mode not in WITHOUT_KEY and not os.environ.get("WANDB_API_KEY"):
        if jax.process_index() == 0:
            print(
                "W&B is left out: give the step secrets={'WANDB_API_KEY': ...}, or the tracker mode='offline'. "
                f"The losses are in {metrics_path(output_path)}.",
                flush=True,
            )
        return None
    os.environ.setdefault("WANDB_DIR", wandb_folder(output_path))
    code = tracker.save_code if isinstance(tracker.save_code, str) else False
    return dataclasses.replace(tracker, name=tracker.name or basename(output_path), mode=mode, save_code=code)


def _options(made: Any, output_path: str, together: int) -> TrackingOptions:
    sizes = made.trainer.train_batch_size
    stages = ((0, sizes),) if isinstance(sizes, int) else tuple((each.start, each.value) for each in sizes)
    steps, length = made.trainer.num_train_steps, made.train_seq_len or made.model.max_seq_len
    return TrackingOptions(
        metrics_path=metrics_path(output_path),
        total_steps=steps,
        tokens_per_step=stages[0][1] * length * together,
        steps_per_line=max(10, steps // 1000),
        examples_per_step=stages[0][1],
        batch_sizes=stages if len(stages) > 1 else (),
        each_set=True,
    )
