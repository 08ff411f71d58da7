"""Slow down the recipes' trainings with a pause before each step, which leaves time for the faults."""

from __future__ import annotations

import time
from typing import Any, Final

from tradewind.recipes.lm.run import LevanterTrainConfig, run_levanter_train_lm
from tradewind.recipes.train_config import LmTrainConfig
from tradewind.recipes.train_lm import train_lm

STEP_S: Final = 0.4


def train_slowly(config: LmTrainConfig) -> dict[str, Any]:
    """``train_lm``, with a pause before each step."""
    _wait_before_each_step()
    return train_lm(config)


def tune_slowly(config: LevanterTrainConfig) -> dict[str, Any]:
    """``run_levanter_train_lm``, with a pause before each step."""
    _wait_before_each_step()
    return run_levanter_train_lm(config)


def _wait_before_each_step() -> None:
    from levanter.trainer import Trainer

    train_step = Trainer.train_step

    def pause_and_train(*args: Any, **kwargs: Any) -> Any:
        time.sleep(STEP_S)
        return train_step(*args, **kwargs)

    Trainer.train_step = pause_and_train


for slow, fast in ((train_slowly, train_lm), (tune_slowly, run_levanter_train_lm)):
    slow.preflight = fast.preflight  # type: ignore[attr-defined]
    slow.warm_imports = fast.warm_imports  # type: ignore[attr-defined]
