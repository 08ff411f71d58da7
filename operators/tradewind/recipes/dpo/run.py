"""Train any ``TrainDpoConfig`` of Levanter's on the hosts of a pod: direct preference optimization.

The model learns from pairs of conversations, of which one was chosen and one rejected, to prefer the chosen one more
than a reference does (Rafailov et al., https://arxiv.org/abs/2305.18290). The course is that of any training.
"""

from __future__ import annotations

from typing import Any, Final

from tradewind.recipes.dpo.checks import check_dpo_config, check_dpo_models
from tradewind.recipes.dpo.facts import DPO_MEASURES, dpo_beginning, dpo_ending, dpo_facts, dpo_losses
from tradewind.recipes.dpo.pairs import check_pairs
from tradewind.recipes.dpo.prepared import prepared_for_dpo
from tradewind.recipes.lm.config import LevanterTrainConfig
from tradewind.recipes.lm.running import KindOfTraining

__all__ = ["LevanterTrainConfig", "run_levanter_train_dpo"]

_DPO: Final = KindOfTraining(
    main="levanter.main.train_dpo",
    check=check_dpo_config,
    prepared=prepared_for_dpo,
    check_data=check_pairs,
    check_models=check_dpo_models,
    facts=dpo_facts,
    beginning=dpo_beginning,
    losses=dpo_losses,
    ending=dpo_ending,
    also_kept=lambda made: (*DPO_MEASURES, f"{made.lm_validation_prefix}/*loss", f"{made.lm_validation_prefix}/*bpb"),
)


def dpo_preflight(config: Any, devices: int, num_slices: int = 1) -> None:
    """Look at everything that the training needs, on a CPU, for a run on that many devices over all slices.

    Raises:
        ValueError: For what cannot work, with its field and what to do.
    """
    _DPO.look_at(config, devices, num_slices)


def run_levanter_train_dpo(config: Any) -> dict[str, Any]:
    """Train to the last step, from the newest sound checkpoint on.

    Args:
        config: A ``LevanterTrainConfig`` with a ``levanter.main.train_dpo.TrainDpoConfig``.

    Returns:
        What ``run_levanter_train_lm`` returns, where a loss is that of DPO, ``-log(sigmoid(margin))``, and besides
        ``accuracy`` (share of the validation pairs whose chosen conversation has the higher reward), ``margin`` (by how
        much, on average), ``train_accuracy`` and ``train_margin`` of the last step; None where nothing was measured. A
        reward is ``beta`` times the log-probability, in nats, that the model gives to the assistant's words less that
        which the reference gives.

    Raises:
        ValueError: For what ``preflight`` would have refused.
    """
    return _DPO.run(config)


run_levanter_train_dpo.preflight = dpo_preflight  # type: ignore[attr-defined]  # before a slice is reserved
run_levanter_train_dpo.warm_imports = (  # type: ignore[attr-defined]
    "levanter.main.train_dpo",
    "jax.experimental.multihost_utils",
)
