"""Train any ``TrainDpoConfig`` of Levanter's on the hosts of a pod: direct preference optimization.

The model learns from pairs of a chosen and a rejected conversation to prefer the chosen one more than a reference does
(Rafailov et al., https://arxiv.org/abs/2305.18290). ``tradewind.recipes.lm.run`` runs the training. This module checks
the config before a slice is reserved, prepares it, and summarizes the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from tradewind.datasets.files import join
from tradewind.recipes.checkpoints.resume import newest_checkpoint
from tradewind.recipes.dpo.pairs import check_pairs, count_pairs, trained_components
from tradewind.recipes.lm.checks import (
    check_initialization,
    check_keys,
    check_length,
    check_schedules,
    check_weights,
    trains_whole_model,
)
from tradewind.recipes.lm.config import LevanterTrainConfig, output_path_of
from tradewind.recipes.lm.field_types import check_values
from tradewind.recipes.lm.pod_config import data_with_paths, reference_of, with_paths
from tradewind.recipes.lm.run import TrainingAdapter
from tradewind.recipes.lm.stored_models import check_hub_model, check_same_model
from tradewind.recipes.lm.training_summary import (
    TrainingSummary,
    losses,
    result_end_lines,
    training_lines,
    training_summary,
)

__all__ = ["LevanterTrainConfig", "run_levanter_train_dpo"]

_POLICY = "policy/"
"""Prefix of the trained model's arrays in a checkpoint that also has a reference."""
DPO_MEASURES: Final = ("train/dpo_*", "eval/*/dpo_*")
"""Patterns of Levanter's metrics besides the losses."""
_PASSES: Final = 4
"""Cost of a sequence in forward passes: the model's, its backward pass (two), and the reference's."""


def check_dpo_config(given: Any) -> None:
    """Check the config alone.

    Raises:
        ValueError: With the field and the remedy.
    """
    check_values(given)
    _check_weights_to_begin_with(given)
    _check_reference(given)
    check_length(given)
    check_schedules(given)
    check_weights(given.data)
    check_keys(given)
    if len(names := trained_components(given.data)) != 1:
        raise ValueError(
            f"train_config.data.train_weights has weights for {', '.join(names)}: DPO trains on one component, so put "
            "all pairs into one."
        )
    if not given.beta > 0:
        raise ValueError(f"train_config.beta={given.beta}: give a number above 0, such as 0.1.")
    fraction = given.validation_split_fraction
    if fraction is not None and not 0 <= fraction < 1:
        raise ValueError(
            f"train_config.validation_split_fraction={fraction}: give at least 0 and less than 1, or None to validate "
            "on the validation split of the data."
        )


def check_dpo_models(made: Any, roots: list[str]) -> None:
    """Raise ``ValueError`` if the newest checkpoint, the initial model or the reference has another shape."""
    if made.initialize_from_hf and made.use_hf_model_config:
        return  # the stored model defines the shape
    reference = made.reference
    is_of_hub = bool(getattr(reference, "is_hf", False))
    vocab_size = len(made.data.the_tokenizer)
    newest = newest_checkpoint(roots)
    is_begin_read = newest is None or not trains_whole_model(made)
    for field, path in {
        "initialize_from_checkpoint_path": made.initialize_from_checkpoint_path if is_begin_read else None,
        "reference.model_path": None if is_of_hub else getattr(reference, "model_path", None),
    }.items():
        if path:
            check_same_model(made, vocab_size, path, f"train_config.{field}")
    for field, begin in {
        "initialize_from_hf": made.initialize_from_hf if newest is None else None,
        "reference.model_path": reference.model_path if is_of_hub else None,
    }.items():
        if begin:
            check_hub_model(made, begin, f"train_config.{field}")
    if newest is not None and trains_whole_model(made) and not made.trainer.allow_partial_checkpoint:
        check_same_model(made, vocab_size, newest.path, "output_path", _POLICY)


def _check_weights_to_begin_with(given: Any) -> None:
    begins = check_initialization(given)
    if not begins:
        raise ValueError(
            "train_config.initialize_from_hf and train_config.initialize_from_checkpoint_path are missing: give the "
            "weights to begin with, those of a model that was fine-tuned."
        )
    if begins == ["trainer.initialize_from"]:
        raise ValueError(
            "train_config.trainer.initialize_from is the whole state of a training, which DPO does not share: "
            "give initialize_from_checkpoint_path."
        )


def _check_reference(given: Any) -> None:
    if hasattr(given.reference, "model_path"):
        if not given.reference.model_path:
            raise ValueError(
                "train_config.reference.model_path is missing: give the reference model, usually the one to begin with."
            )
    elif trains_whole_model(given):
        raise ValueError(
            f"train_config.reference is a {type(given.reference).__name__}, and train_config.adapter is none: give a "
            "LoraAdaptorConfig as adapter, or a SeparateReferenceConfig as reference."
        )


def dpo_summary(made: Any) -> TrainingSummary:
    """Summarize the config that Levanter will run, on the devices of this process."""
    return training_summary(made, together=2, passes=_PASSES)


def dpo_start_lines(summary: TrainingSummary, made: Any) -> list[str]:
    """Return log lines of model, pairs and reference at the start."""
    pairs = count_pairs(made)
    counts = [f"{pairs[0]:,} pairs to train on, {pairs[1]:,} cut off for validation"] if pairs else []
    reference = getattr(made.reference, "model_path", None) or "the model without its adapter"
    return training_lines(summary, made, [*counts, f"beta {made.beta:g}, reference {reference}"])


def dpo_losses(last: Mapping[str, Any]) -> dict[str, Any]:
    """Return losses, accuracies and margins of the last step.

    They are means over the validation sets, each of which Levanter measures by itself.
    """
    measured = losses(last)
    sets = measured["eval_losses"]
    return measured | {
        "eval_loss": _mean([*sets.values()]),
        "accuracy": _mean([last.get(f"eval/{name}/dpo_accuracy") for name in sets]),
        "margin": _mean([_margin(last, f"eval/{name}") for name in sets]),
        "train_accuracy": last.get("train/dpo_accuracy"),
        "train_margin": _margin(last, "train"),
    }


def dpo_end_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the result's log lines."""
    measured = [
        f"{where}: {result[f'{prefix}accuracy']:.1%} of the pairs preferred as chosen, margin of rewards "
        f"{result[f'{prefix}margin']:.3f}"
        for where, prefix in (("last step", "train_"), ("validation", ""))
        if result[f"{prefix}accuracy"] is not None
    ]
    return result_end_lines(result, measured)


def _margin(measured: Mapping[str, Any], where: str) -> float | None:
    chosen, rejected = (measured.get(f"{where}/dpo_{side}_reward") for side in ("chosen", "rejected"))
    return None if chosen is None or rejected is None else chosen - rejected


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def prepare_dpo_config(config: Any) -> Any:
    """Return the ``TrainDpoConfig`` for Levanter, with checkpoints and exports under the output path.

    Raises:
        ValueError: The tokenizer's folder, the initial checkpoint or that of the reference is missing.
    """
    made = with_paths(config)
    texts, reference, eval_cache = made.lm_validation_data, made.reference, made.reference_eval_cache
    if (checkpoint := reference_of(config)) is not None:
        reference = dataclasses.replace(reference, model_path=checkpoint)
    cache_dir = join(output_path_of(config), "reference_logprobs")  # Levanter's default is in another step's output
    return dataclasses.replace(
        made,
        reference=reference,
        reference_eval_cache=dataclasses.replace(eval_cache, cache_dir=eval_cache.cache_dir or cache_dir),
        lm_validation_data=texts and data_with_paths(config, texts, "lm_validation_data"),
    )


_DPO: Final = TrainingAdapter(
    main="levanter.main.train_dpo",
    check=check_dpo_config,
    prepare=prepare_dpo_config,
    check_data=check_pairs,
    check_models=check_dpo_models,
    summary=dpo_summary,
    start_lines=dpo_start_lines,
    losses=dpo_losses,
    end_lines=dpo_end_lines,
    also_kept=lambda made: (*DPO_MEASURES, f"{made.lm_validation_prefix}/*loss", f"{made.lm_validation_prefix}/*bpb"),
)


def dpo_preflight(config: Any, devices: int, num_slices: int = 1) -> None:
    """Check on a CPU all that the training needs to run on that many devices over all slices.

    Raises:
        ValueError: With the field and the remedy.
    """
    _DPO.preflight_checks(config, devices, num_slices)


def run_levanter_train_dpo(config: Any) -> dict[str, Any]:
    """Train to the last step, from the newest undamaged checkpoint.

    Args:
        config: A ``LevanterTrainConfig`` with a ``levanter.main.train_dpo.TrainDpoConfig``.

    Returns:
        The result of ``run_levanter_train_lm`` with DPO losses, ``-log(sigmoid(margin))``, and ``accuracy`` (share of
        the validation pairs whose chosen conversation has the higher reward), ``margin`` (mean difference of rewards),
        ``train_accuracy`` and ``train_margin`` of the last step; None if not measured. A reward is ``beta`` times the
        difference of the model's and the reference's log-probabilities, in nats, of the assistant's words.

    Raises:
        ValueError: As ``preflight``.
    """
    return _DPO.run(config)


run_levanter_train_dpo.preflight = dpo_preflight  # type: ignore[attr-defined]  # before a slice is reserved
run_levanter_train_dpo.warm_imports = (  # type: ignore[attr-defined]
    "levanter.main.train_dpo",
    "jax.experimental.multihost_utils",
)
