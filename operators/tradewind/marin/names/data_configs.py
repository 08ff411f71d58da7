"""``marin.processing.tokenize.data_configs``: mixtures of training data from tokenizing steps."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tradewind.marin.legacy.classes import builder
from tradewind.marin.names.steps import unversioned
from tradewind.marin.names.tokenizing import TokenizeConfigBase
from tradewind.steps import ExecutorStep, output_path_of
from tradewind.steps.errors import ExperimentError

__all__ = [
    "PermutationType",
    "TokenizerStep",
    "add_validation_sets_to_mixture",
    "as_single_lm_data_source",
    "interpolate_mixture_configs",
    "interpolate_mixture_weights",
    "lm_data_config",
    "lm_mixture_data_config",
    "lm_varying_mixture_data_config",
    "mixture_for_evaluation",
    "step_to_lm_mixture_component",
]

logger = logging.getLogger(__name__)

PermutationType = Literal["linear", "feistel"]
TokenizerStep = ExecutorStep
Weights = dict[str, float]
Mixture = Any
"""An ``LMMixtureDatasetConfig`` of the legacy API."""
_BLOCK = 2048


def _mixture(**given: Any) -> Mixture:
    return builder().find("levanter.data.text.LMMixtureDatasetConfig")(cache_dir=None, **given)


def step_to_lm_mixture_component(step: Any, include_raw_paths: bool) -> Any:
    """Return the training data source of a tokenizing step, or of a tokenizing config without a step.

    Raises:
        ValueError: The step does not tokenize, or its config lacks Marin's method.
    """
    if isinstance(step, TokenizeConfigBase):
        return step.as_lm_dataset_source_config(step.cache_path, include_raw_paths=include_raw_paths)
    if isinstance(step, ExecutorStep) and not hasattr(step.config, "as_lm_dataset_source_config"):
        raise ValueError(
            f"Step {step.name!r} is not of default_tokenize, so its config does not name texts and format of its "
            "token cache: tokenize the data of a Marin training with default_tokenize."
        )
    return step.config.as_lm_dataset_source_config(output_path_of(step), include_raw_paths=include_raw_paths)


def as_single_lm_data_source(input: Any) -> Any:
    """Return the training data source of one tokenizing step, with the paths of its texts."""
    return step_to_lm_mixture_component(input, include_raw_paths=True)


def lm_data_config(
    training_set: Any,
    permutation_type: str = "feistel",
    *,
    validation_sets: Mapping[str, Any] | None = None,
    shuffle: bool | int = True,
    max_train_batches: dict[str, int] | None = None,
    num_validation_sequences: dict[str, int] | None = None,
) -> Mixture:
    """Return one training set, named by the last part of its step's name, with validation sets.

    Raises:
        ValueError: A validation set has another tokenizer.
    """
    for name, step in (validation_sets or {}).items():
        if step.config.tokenizer != training_set.config.tokenizer:
            raise ValueError(
                f"Validation set {name} ({step.name}) must have same tokenizer as training set's, but got: "
                f"{step.config.tokenizer} vs {training_set.config.tokenizer}"
            )
    name = os.path.basename(training_set.name)
    return lm_mixture_data_config(
        {name: training_set, **(validation_sets or {})},
        {name: 1.0},
        permutation_type=permutation_type,
        shuffle=shuffle,
        max_train_batches=max_train_batches,
        num_validation_sequences=num_validation_sequences,
    )


def lm_mixture_data_config(
    components: Mapping[str, Any],
    weights: Weights,
    permutation_type: str = "feistel",
    *,
    shuffle: bool | int = True,
    missing_weights_are_validation: bool = True,
    include_raw_paths: bool = True,
    max_train_batches: dict[str, int] | None = None,
    num_validation_sequences: dict[str, int] | None = None,
) -> Mixture:
    """Return several weighted sets; sets without a weight are for validation, unless that is disabled."""
    return _mixture(
        configs=_sources(components, include_raw_paths),
        train_weights=_pad_weights(weights, components) if missing_weights_are_validation else weights,
        tokenizer=_common_tokenizer(components),
        shuffle=shuffle,
        permutation_type=permutation_type,
        max_train_batches=max_train_batches,
        num_validation_sequences=num_validation_sequences,
    )


def lm_varying_mixture_data_config(
    components: Mapping[str, Any],
    weights_list: Sequence[tuple[int, Weights]],
    permutation_type: str = "feistel",
    *,
    shuffle: bool | int = True,
    missing_weights_are_validation: bool = True,
    include_raw_paths: bool = True,
    mixture_block_size: int | None = None,
    max_train_batches: dict[str, int] | None = None,
    num_validation_sequences: dict[str, int] | None = None,
) -> Mixture:
    """Return a mixture with varying weights, each preceded by the first sequence number it applies to.

    Raises:
        ValueError: There are no weights, or the first do not start at 0.
    """
    if not weights_list:
        raise ValueError("weights_list cannot be empty")
    if weights_list[0][0] != 0:
        raise ValueError("First weight stage must start at index 0")
    if missing_weights_are_validation:
        weights_list = [(start, _pad_weights(weights, components)) for start, weights in weights_list]
    return _mixture(
        configs=_sources(components, include_raw_paths),
        train_weights=weights_list,
        tokenizer=_common_tokenizer(components),
        shuffle=shuffle,
        mixture_block_size=mixture_block_size or _BLOCK,
        permutation_type=permutation_type,
        max_train_batches=max_train_batches,
        num_validation_sequences=num_validation_sequences,
    )


def mixture_for_evaluation(inputs: Mapping[str, Any]) -> Mixture:
    """Return sets for evaluation only: no weights, no shuffling."""
    return lm_mixture_data_config(inputs, dict.fromkeys(inputs, 0.0), permutation_type="linear", shuffle=False)


def add_validation_sets_to_mixture(config: Mixture, validation_sets: Mapping[str, Any]) -> Mixture:
    """Add validation sets to a mixture; existing names keep their sets."""
    sources = {name: as_single_lm_data_source(step) for name, step in validation_sets.items()}
    weights = config.train_weights
    if not isinstance(weights, dict | list):
        raise ValueError(f"Invalid train_weights type: {type(weights)}")
    stages = [weights] if isinstance(weights, dict) else [stage for _, stage in weights]
    overlap = sorted({name for stage in stages for name in stage if name in validation_sets})
    if overlap:
        logger.warning("Validation sets %s are already in the mixture and stay unchanged.", ", ".join(overlap))
    return dataclasses.replace(
        config,
        configs=_add_missing(config.configs, sources),
        train_weights=_pad_weights(weights, validation_sets)
        if isinstance(weights, dict)
        else [(start, _pad_weights(stage, validation_sets)) for start, stage in weights],
    )


def interpolate_mixture_configs(mixtures: Sequence[Mixture], weights: Sequence[float]) -> Mixture:
    """Return the weighted mean of several mixtures that differ only in their sets.

    Raises:
        ValueError: They differ otherwise, or the weights do not add up to 1.
        TypeError: One is not a mixture.
    """
    kind = builder().find("levanter.data.text.LMMixtureDatasetConfig")
    if not all(isinstance(mixture, kind) for mixture in mixtures):
        raise TypeError("All items in mixtures must be LMMixtureDatasetConfig instances")
    _check_shares(mixtures, weights)
    first = mixtures[0]
    for mixture in mixtures:
        _check_same_tokenizer(mixture.tokenizer, first.tokenizer, "a mixture")
        for setting in ("shuffle", "max_train_batches", "num_validation_sequences"):
            if getattr(mixture, setting) != getattr(first, setting):
                raise ValueError(f"All mixtures must have the same {setting}")
    configs: dict[str, Any] = {}
    for mixture in mixtures:
        configs = _add_missing(configs, mixture.configs)
    return _mixture(
        configs=configs,
        train_weights=interpolate_mixture_weights([mixture.train_weights for mixture in mixtures], weights),
        tokenizer=first.tokenizer,
        shuffle=first.shuffle,
        max_train_batches=first.max_train_batches,
        num_validation_sequences=first.num_validation_sequences,
        permutation_type=first.permutation_type,
    )


def interpolate_mixture_weights(mixture_weights: Sequence[Weights], weights: Sequence[float]) -> Weights:
    """Return the weighted mean of the mixtures' weights, each normalized to 1."""
    _check_shares(mixture_weights, weights)
    mean: Weights = {}
    for part, share in zip(mixture_weights, weights, strict=True):
        total = sum(part.values())
        if total == 0:
            raise ValueError("Total weight in mixture cannot be zero")
        for name, weight in part.items():
            mean[name] = mean.get(name, 0.0) + share * (weight / total)
    return mean


def _check_shares(parts: Sequence[Any], weights: Sequence[float]) -> None:
    if len(parts) != len(weights):
        raise ValueError("mixtures and weights must have the same length")
    if not all(isinstance(weight, int | float) for weight in weights):
        raise TypeError("All items in weights must be numeric")
    if not math.isclose(sum(weights), 1.0, rel_tol=1e-05, abs_tol=1e-08):
        raise ValueError("Weights must sum to 1.0")


def _sources(components: Mapping[str, Any], include_raw_paths: bool) -> dict[str, Any]:
    return {name: step_to_lm_mixture_component(step, include_raw_paths) for name, step in components.items()}


def _add_missing(first: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    return {**first, **{name: value for name, value in more.items() if name not in first}}


def _pad_weights(weights: Weights, names: Mapping[str, Any]) -> Weights:
    return _add_missing(weights, dict.fromkeys(names, 0.0))


def _common_tokenizer(components: Mapping[str, Any]) -> Any:
    """Return the tokenizer of the first component; all others must have the same."""
    configs = {name: step if isinstance(step, TokenizeConfigBase) else step.config for name, step in components.items()}
    tokenizers = {name: config.tokenizer for name, config in configs.items()}
    first = next(iter(tokenizers.values()))
    for name, tokenizer in tokenizers.items():
        _check_same_tokenizer(tokenizer, first, name)
    return first


def _check_same_tokenizer(given: Any, first: Any, whose: str) -> None:
    """Compare tokenizers by name: only their files, which are not loaded, could show two names equal."""
    given, first = unversioned(given), unversioned(first)
    if given != first:
        raise ExperimentError(
            f"The tokenizer of {whose} is {given} and that of the first is {first}: whether they are "
            "equal is unknown while a DAG file is parsed. Give all sets the same name of a tokenizer."
        )
