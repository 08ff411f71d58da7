"""Levanter's training, with one thing in another order: the checkpoint of a step after all else the step does.

Levanter saves a step before it evaluates it, so a training that is killed in between never has that step's validation
loss: its successor goes on after the checkpoint. With the checkpoint last, what was measured up to it is complete.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levanter.main.train_lm import TrainLmConfig

_SAVES = "checkpoint_hook"
"""Levanter's name for what saves a step."""


def train(config: TrainLmConfig) -> None:
    """Levanter's ``train_lm``, up to the last step. The last checkpoint may not be complete yet when this returns."""
    from levanter.main import train_lm

    levanters = train_lm.Trainer
    train_lm.Trainer = _trainer_class()  # its main function makes its trainer itself, and takes no other
    try:
        train_lm.main(config)
    finally:
        train_lm.Trainer = levanters


@cache
def _trainer_class() -> Any:
    """Made on first use, since its base class needs Levanter."""
    from levanter.trainer import Trainer

    class CheckpointsLast(Trainer):
        _save: Any = None

        def add_hook(self, fn: Any = None, *, every: int = 1) -> Any:
            if getattr(fn, "__name__", None) != _SAVES:
                return super().add_hook(fn, every=every)
            self._save = fn
            return None

        def run_hooks(self, info: Any, force: bool = False) -> None:
            super().run_hooks(info, force=force)
            is_last = info.next_step >= self.num_train_steps  # at the end the hooks run once more, by force
            if force or (info.step > 1 and not is_last):  # Levanter runs no hook after its first two steps
                self._save(info, force=force)

    return CheckpointsLast
