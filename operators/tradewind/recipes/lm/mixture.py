"""Train on a weighted mixture of token caches.

Settings and defaults are those of ``train_lm``, so a mixture and its components can be compared. A component of weight
0 is not trained on, but its validation tokens are evaluated, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.recipes.lm.checks import check_shares
from tradewind.recipes.lm.config import LevanterTrainConfig
from tradewind.recipes.lm.run import preflight as preflight_of_levanters
from tradewind.recipes.lm.run import run_levanter_train_lm
from tradewind.recipes.train_config import LmTrainConfig
from tradewind.steps import VersionedValue
from tradewind.steps.fields import PATH, FieldRule, check_fields, number
from tradewind.text import truncated_repr

BLOCK: Final = 2048
"""Sequences of a block, which has each component's share in random order: Levanter's default."""
_BLOCK_SIZE: Final = "data.mixture_block_size"
_BY_NAME: Final = FieldRule(
    "a mapping of names to token caches, such as {'web': tokens}",
    lambda value: isinstance(value, Mapping) and len(value) > 0 and all(map(_is_name, value)),
)
_WEIGHT: Final = number(minimum=0)


def _is_name(value: Any) -> bool:
    """Whether a value is a valid component: Levanter uses it as a folder, and in metrics."""
    return isinstance(value, str) and bool(value) and value.isprintable() and "/" not in value


@dataclass(frozen=True)
class MixtureTrainConfig:
    """Config of ``train_lm_on_mixture``; shared fields are those of ``LmTrainConfig``."""

    caches: Mapping[str, str]
    """Component → output of ``build_token_cache``, all made with one tokenizer."""
    tokenizer_path: str
    output_path: str
    """Gets ``checkpoints/``, ``hf/step-N/``, ``metrics.jsonl`` and, last of all, ``result.json``."""
    weights: Mapping[str, float] | None = None
    """Component → its share of the sequences, relative to the others; equal if not given."""
    model_size: str = ""
    num_train_steps: int = field(kw_only=True)
    learning_rate: float = field(kw_only=True)
    batch_size: int = field(kw_only=True)
    seq_len: int = field(kw_only=True)
    weight_decay: float = LmTrainConfig.weight_decay
    seed: int = LmTrainConfig.seed
    steps_per_eval: int = LmTrainConfig.steps_per_eval
    max_eval_batches: int | None = LmTrainConfig.max_eval_batches
    steps_per_checkpoint: int | None = LmTrainConfig.steps_per_checkpoint
    checkpoint_seconds: float = LmTrainConfig.checkpoint_seconds
    model: Any = None
    initialize_from: str | None = None
    levanter: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self, caches=_BY_NAME)
        for name, path in self.caches.items():
            PATH.check(f"caches[{name!r}]", path)
        check_weights(self.caches, self.weights)
        self.settings()
        levanter = self.levanter.value if isinstance(self.levanter, VersionedValue) else self.levanter
        block = levanter.get(_BLOCK_SIZE, BLOCK)
        if isinstance(self.weights, Mapping) and isinstance(block, int):  # else Levanter's fields are checked later
            check_shares(self.weights, block)

    def settings(self) -> LmTrainConfig:
        """Return the shared fields as a checked ``LmTrainConfig`` on the first cache."""
        shared = {each.name for each in dataclasses.fields(LmTrainConfig)} & {
            each.name for each in dataclasses.fields(self)
        }
        first = next(iter(self.caches.values()))
        return LmTrainConfig(cache_path=first, **{name: getattr(self, name) for name in shared})


def check_weights(names: Mapping[str, Any], weights: Any) -> None:
    """Check that each component has a weight, and one of them a weight above 0.

    Raises:
        ValueError: With the component and the remedy.
    """
    given = weights.value if isinstance(weights, VersionedValue) else weights
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise ValueError(
            f"weights={truncated_repr(given)}: give a mapping of components to numbers, such as {{'web': 0.7}}."
        )
    for name in given:
        if name not in names:
            raise ValueError(f"weights has {name!r}, which is no component: there are {', '.join(names)}.")
    for name in names:
        if name not in given:
            raise ValueError(f"weights has none for {name!r}: give it one, or 0 if it is only for validation.")
        _WEIGHT.check(f"weights[{name!r}]", given[name])
    if not any(given.values()):
        raise ValueError("weights are all 0, so there is nothing to train on: give one component a weight above 0.")


def train_lm_on_mixture(config: MixtureTrainConfig) -> dict[str, Any]:
    """Train, and return the result of ``run_levanter_train_lm``, with ``eval_losses`` by component.

    Raises:
        ValueError: As ``preflight``.
    """
    return run_levanter_train_lm(levanter_mixture(config))


def preflight(config: MixtureTrainConfig, devices: int, num_slices: int = 1) -> None:
    """Check on a CPU all that the training needs; see ``run_levanter_train_lm``.

    Raises:
        ValueError: With the field and the remedy.
    """
    preflight_of_levanters(levanter_mixture(config), devices, num_slices)


train_lm_on_mixture.preflight = preflight  # type: ignore[attr-defined]  # before a slice is reserved
train_lm_on_mixture.warm_imports = run_levanter_train_lm.warm_imports  # type: ignore[attr-defined]


def levanter_mixture(config: MixtureTrainConfig) -> LevanterTrainConfig:
    """Return the training as a Levanter config.

    Raises:
        ValueError: A token cache or the tokenizer is missing, or Levanter has no such setting.
    """
    from levanter.data.text import DatasetComponent

    from tradewind.datasets.tokenizer_files import local_tokenizer
    from tradewind.recipes.lm.levanter_config import levanter_config
    from tradewind.recipes.lm.levanter_parts import cache_folder

    settings = config.settings()
    made = levanter_config(settings, local_tokenizer(config.tokenizer_path))
    data = dataclasses.replace(
        made.data,
        cache_dir=None,
        mixture_block_size=config.levanter.get(_BLOCK_SIZE, BLOCK),
        components={name: DatasetComponent(cache_dir=cache_folder(path)) for name, path in config.caches.items()},
        train_weights=dict(config.weights) if config.weights else dict.fromkeys(config.caches, 1.0),
    )
    return LevanterTrainConfig(
        dataclasses.replace(made, data=data, hf_save_steps=config.num_train_steps), config.output_path
    )
