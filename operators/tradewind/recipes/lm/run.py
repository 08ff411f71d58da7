"""Train any ``TrainLmConfig`` of Levanter's on the hosts of a pod: a person's own, or of one of Marin's experiments.

Levanter's own main function trains, so whatever it takes is taken: mixtures, schedules, several validation sets,
averaged weights, other models and optimizers.
"""

from __future__ import annotations

from typing import Any, Final

from tradewind.recipes.levanter.trainer import LM
from tradewind.recipes.lm.checks import check_data, check_models, check_train_config
from tradewind.recipes.lm.config import LevanterTrainConfig
from tradewind.recipes.lm.facts import beginning, ending, facts_of, losses
from tradewind.recipes.lm.prepared import prepared
from tradewind.recipes.lm.running import KindOfTraining
from tradewind.recipes.metrics.harness import check_tasks

__all__ = ["LevanterTrainConfig", "run_levanter_train_lm"]

_LM: Final = KindOfTraining(
    main=LM,
    check=check_train_config,
    prepared=prepared,
    check_data=check_data,
    check_models=check_models,
    facts=facts_of,
    beginning=beginning,
    losses=losses,
    ending=ending,
)


def preflight(config: Any, devices: int, num_slices: int = 1) -> None:
    """Look at everything that the training needs, on a CPU, for a run on that many devices over all slices.

    Raises:
        ValueError: For what cannot work, with its field and what to do.
    """
    _LM.look_at(config, devices, num_slices)
    check_tasks(config.train_config.eval_harness)


def run_levanter_train_lm(config: Any) -> dict[str, Any]:
    """Train to the last step, from the newest sound checkpoint on.

    Args:
        config: A ``LevanterTrainConfig``, or Marin's ``TrainLmOnPodConfig``.

    Returns:
        ``run_id``, ``first_step`` (0, unless it goes on with another training), ``steps``, ``parameters``, ``tokens``,
        ``flops``, ``devices``, ``device_kind``, ``device_flops`` (a second, of one, at most; None where nobody knows),
        the losses of the last step in nats per token (``train_loss``, ``eval_loss`` and by validation set
        ``eval_losses``; None where nothing was measured), ``checkpoint`` and ``export`` (None without one).

    Raises:
        ValueError: For what ``preflight`` would have refused.
    """
    return _LM.run(config)


run_levanter_train_lm.preflight = preflight  # type: ignore[attr-defined]  # before a slice is reserved
run_levanter_train_lm.warm_imports = (LM, "jax.experimental.multihost_utils")  # type: ignore[attr-defined]
