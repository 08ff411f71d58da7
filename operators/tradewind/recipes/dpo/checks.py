"""What a ``TrainDpoConfig`` asks for that cannot be, found before a slice is reserved, and told with its field."""

from __future__ import annotations

from typing import Any

from tradewind.recipes.checkpoints.newest import newest_checkpoint
from tradewind.recipes.checkpoints.stored_shapes import check_same_model
from tradewind.recipes.dpo.pairs import trained_components
from tradewind.recipes.levanter.hub_models import check_hub_model
from tradewind.recipes.levanter.values import check_values
from tradewind.recipes.lm.checks import check_begin, check_keys, check_length, check_schedules, check_weights

_POLICY = "policy/"
"""Begins the names of the trained model's arrays in a checkpoint that has a reference beside it."""


def check_dpo_config(given: Any) -> None:
    """Refuse what the config alone shows to be wrong.

    Raises:
        ValueError: With the field and what to do.
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
    """Raise ``ValueError`` if the newest checkpoint, the model to begin with or the reference is of another shape."""
    if made.initialize_from_hf and made.use_hf_model_config:
        return  # the model is whatever is there
    reference = made.reference
    is_of_hub = bool(getattr(reference, "is_hf", False))
    vocab_size = len(made.data.the_tokenizer)
    newest = newest_checkpoint(roots)
    is_begin_read = newest is None or not _is_whole(made)
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
    if newest is not None and _is_whole(made) and not made.trainer.allow_partial_checkpoint:
        check_same_model(made, vocab_size, newest.path, "output_path", _POLICY)


def _check_weights_to_begin_with(given: Any) -> None:
    begins = check_begin(given)
    if not begins:
        raise ValueError(
            "train_config.initialize_from_hf and train_config.initialize_from_checkpoint_path are missing: give the "
            "weights to begin with, those of a model that was fine-tuned."
        )
    if begins == ["trainer.initialize_from"]:
        raise ValueError(
            "train_config.trainer.initialize_from is the whole state of a training, which one of DPO does not share: "
            "give initialize_from_checkpoint_path."
        )


def _check_reference(given: Any) -> None:
    if hasattr(given.reference, "model_path"):
        if not given.reference.model_path:
            raise ValueError(
                "train_config.reference.model_path is missing: give the model that preferences are compared with, "
                "mostly the one to begin with."
            )
    elif _is_whole(given):
        raise ValueError(
            f"train_config.reference is a {type(given.reference).__name__}, and train_config.adapter is none: give a "
            "LoraAdaptorConfig as adapter, or a SeparateReferenceConfig as reference."
        )


def _is_whole(given: Any) -> bool:
    """Whether the model itself is trained, and no adapter of it."""
    return type(given.adapter).__name__ == "NoAdaptorConfig"
