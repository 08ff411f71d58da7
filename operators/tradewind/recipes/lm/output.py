"""What a training leaves under its output path while it runs and when it has ended.

The processes of a training call these methods together, on all hosts; process 0 writes and removes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tradewind.datasets.files import exists, join, read_json, remove_unfinished, write_json
from tradewind.recipes.checkpoints.files import METADATA
from tradewind.recipes.checkpoints.newest import make_permanent, newest_checkpoint, remove_temporary
from tradewind.recipes.metrics.file import read_metrics
from tradewind.recipes.train_config import checkpoints_path, metrics_path, result_path

LAST_CHECKPOINT_S: Final = 900.0
"""How long the last checkpoint may take to reach the store after the last step."""


@dataclass(frozen=True)
class TrainingOutput:
    """The output of a training.

    Attributes:
        path: Gets ``checkpoints/``, ``metrics.jsonl`` and, last of all, ``result.json``.
        num_train_steps: How long the training is.
        temporary: Where its temporary checkpoints lie, if that is another folder.
    """

    path: str
    num_train_steps: int
    temporary: str | None = None

    @property
    def roots(self) -> list[str]:
        """The folders that hold checkpoints: the permanent ones' first."""
        return [checkpoints_path(self.path), *([self.temporary] if self.temporary else [])]

    @property
    def last_checkpoint(self) -> str:
        """Where the checkpoint of the last step lies, or will."""
        return join(self.roots[0], f"step-{self.num_train_steps - 1}")

    def result(self) -> dict[str, Any] | None:
        """What the training returned, if one of this length has ended."""
        path = result_path(self.path)
        result: dict[str, Any] | None = read_json(path) if exists(path) else None
        return result if result and result["steps"] == self.num_train_steps else None

    def check_newest(self) -> None:
        """Raise ``ValueError`` for a checkpoint of a longer training, which would pass for the end of this one."""
        if (step := self.newest_step()) >= self.num_train_steps:
            raise ValueError(
                f"{self.path} has a checkpoint of step {step}, and this training ends with step "
                f"{self.num_train_steps - 1}: give it an output of its own, or num_train_steps of more."
            )

    def remove_unfinished(self) -> None:
        """Remove what a killed process was writing: a start after a preemption is no new attempt, which would."""
        import jax

        if jax.process_index() == 0:
            remove_unfinished(self.path)

    def newest_step(self) -> int:
        """Index of the last step in the newest complete checkpoint; -1 if there is none."""
        newest = newest_checkpoint(self.roots)
        return -1 if newest is None else newest.step

    def await_last_checkpoint(self) -> None:
        """Levanter writes checkpoints in the background and returns before the last one is complete; what is newest
        until then is an older one.

        Raises:
            TimeoutError: It does not get there.
        """
        deadline = time.monotonic() + LAST_CHECKPOINT_S
        last = join(self.last_checkpoint, METADATA)
        while self.newest_step() < self.num_train_steps - 1 or not exists(last):
            if time.monotonic() > deadline:
                raise TimeoutError(f"The last checkpoint under {self.path} was not complete in time.")
            time.sleep(0.2)

    def keep_last_checkpoint(self) -> None:
        """Leave the last checkpoint, as a permanent one, and the other permanent ones."""
        import jax
        from jax.experimental.multihost_utils import sync_global_devices

        if jax.process_index() == 0:
            newest = newest_checkpoint(self.roots)
            if newest is not None and newest.is_temporary:
                make_permanent(newest, self.roots[0])
            remove_temporary(self.roots)
        sync_global_devices("tradewind: last checkpoint kept")

    def last_metrics(self) -> dict[str, Any]:
        """What was measured at the last step."""
        metrics = read_metrics(metrics_path(self.path))
        return metrics[-1] if metrics and metrics[-1]["step"] == self.num_train_steps - 1 else {}

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write what the training returns, the last thing it does; no process goes on before it is there."""
        import jax
        from jax.experimental.multihost_utils import sync_global_devices

        if jax.process_index() == 0:
            write_json(result_path(self.path), result)
        sync_global_devices("tradewind: result written")
