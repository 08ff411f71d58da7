"""Levanter's training, with one thing in another order: the checkpoint of a step after all else the step does.

Levanter saves a step before it evaluates it, so a training that is killed in between never has that step's validation
loss: its successor goes on after the checkpoint. With the checkpoint last, what was measured up to it is complete.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, Final

LM: Final = "levanter.main.train_lm"
_SAVES: Final = "checkpoint_hook"
"""Levanter's name for what saves a step."""


def train(config: Any, main: str = LM) -> None:
    """Levanter's training, up to the last step. The last checkpoint may not be complete yet when this returns.

    Args:
        config: A ``TrainLmConfig``, or what else the main function takes.
        main: The module of Levanter's that has the main function.
    """
    module: Any = importlib.import_module(main)
    if config.trainer.quantization is not None:
        _let_quantized_states_load()
    levanters = module.Trainer
    module.Trainer = _trainer_class()  # its main function makes its trainer itself, and takes no other
    try:
        module.main(config)
    finally:
        module.Trainer = levanters


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
            if force:  # at the end the hooks run once more
                self._save(info, force=True)

        def train_step(self, state: Any, *batch: Any, **named: Any) -> Any:
            info = super().train_step(state, *batch, **named)
            if 1 < info.step < self.num_train_steps - 1:  # Levanter runs no hook after its first two steps
                self._save(info, force=False)
            return info

    return CheckpointsLast


@cache
def _let_quantized_states_load() -> None:
    """For the rest of this process.

    The operations of a quantized layer are part of the state and hold no arrays. Levanter gives such a part one name
    where it has many empty places, so it saves such a state and cannot load it. Here each place has its own, or none.
    """
    import jax
    from levanter.utils import jax_utils

    levanters = jax_utils.leaf_key_paths

    def leaf_key_paths(pytree: Any, *arguments: Any, **options: Any) -> Any:
        if pytree is None or jax.tree_util.tree_leaves(pytree):
            return levanters(pytree, *arguments, **options)
        return pytree  # what is empty is its own tree of names

    jax_utils.leaf_key_paths = leaf_key_paths
