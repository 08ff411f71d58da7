"""TensorBoard and Weights & Biases, offline by default, beside the metrics file.

Both get all that Levanter measures, from process 0.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tradewind.datasets.files import basename, is_remote, join, parent
from tradewind.steps.fields import SOME_TEXT, TEXT, TEXTS, check_fields, one_of

WANDB_MODES = ("offline", "online", "disabled")


@dataclass(frozen=True)
class WandbOptions:
    """A run at Weights & Biases."""

    project: str
    entity: str | None = None
    """User or team; W&B's default if not given."""
    name: str | None = None
    """Displayed name; the last part of the output path if not given."""
    group: str | None = None
    tags: Sequence[str] = ()
    mode: str = "offline"
    """``offline`` (files, for ``wandb sync``), ``online`` or ``disabled``; the variable ``WANDB_MODE`` overrides it.
    Online, the step needs ``secrets={"WANDB_API_KEY": ...}``."""

    def __post_init__(self) -> None:
        names = dict.fromkeys(("entity", "name", "group"), TEXT.or_none())
        check_fields(self, project=SOME_TEXT, **names, tags=TEXTS, mode=one_of(WANDB_MODES))


def tensorboard_path(train_path: str) -> str:
    """Return the folder of the training's TensorBoard event files."""
    return join(train_path, "tensorboard")


def tensorboard_config(output_path: str, first_step: int) -> Any:
    """Return Levanter's tracker for TensorBoard, which appends the run's id, the output's name, to the path.

    It hides what an earlier attempt reported from ``first_step`` on.
    """
    from levanter.tracker.tensorboard import TensorboardConfig

    return TensorboardConfig(logdir=tensorboard_path(output_path), flush_secs=20, purge_step=first_step)


def wandb_config(options: WandbOptions, output_path: str) -> Any:
    """Return Levanter's tracker for W&B; its run id is the output's name, so a restarted training continues it."""
    from levanter.tracker.wandb import WandbConfig

    os.environ.setdefault("WANDB_DIR", wandb_folder(output_path))
    return WandbConfig(
        project=options.project,
        entity=options.entity,
        name=options.name or basename(output_path),
        group=options.group,
        tags=list(options.tags),
        mode=os.environ.get("WANDB_MODE", options.mode),
        save_code=False,
    )


def wandb_folder(output_path: str) -> str:
    """Make a local folder for W&B, which writes to no other; beside the metrics if those are local."""
    if is_remote(output_path):
        folder = Path(tempfile.gettempdir()) / "tradewind-wandb" / basename(parent(output_path)) / basename(output_path)
    else:
        folder = Path(output_path)
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)
