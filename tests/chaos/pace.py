"""The recipe's training at a pace of its own: a step that waits costs no CPU, and gives faults the time to come."""

from __future__ import annotations

import time
from typing import Any, Final

from tradewind.recipes.train_config import LmTrainConfig
from tradewind.recipes.train_lm import train_lm

STEP_S: Final = 0.4


def train_slowly(config: LmTrainConfig) -> dict[str, Any]:
    """``train_lm``, with a pause before each step."""
    from levanter.trainer import Trainer

    train_step = Trainer.train_step

    def waits(*args: Any, **kwargs: Any) -> Any:
        time.sleep(STEP_S)
        return train_step(*args, **kwargs)

    Trainer.train_step = waits
    return train_lm(config)


train_slowly.preflight = train_lm.preflight  # type: ignore[attr-defined]
train_slowly.warm_imports = train_lm.warm_imports  # type: ignore[attr-defined]
