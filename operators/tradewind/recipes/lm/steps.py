"""The step of a training on a mixture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tradewind.recipes.lm.mixture import MixtureTrainConfig, check_weights, train_lm_on_mixture
from tradewind.recipes.steps import declared_tokenizer, naming_step, recipe_step
from tradewind.recipes.train_config import RESUMABLE
from tradewind.steps import ExecutorStep, InputName
from tradewind.text import truncated_repr

_MEASURING: Final = ("steps_per_eval", "max_eval_batches", "steps_per_checkpoint", "checkpoint_seconds")
_ABOUT: Final = "Trains a language model with Levanter on a mixture of token caches."


@naming_step
def train_mixture(
    name: str,
    components: Mapping[str, Any],
    model: Any,
    *,
    weights: Mapping[str, float] | None = None,
    tokenizer: Any = None,
    **options: Any,
) -> ExecutorStep:
    """A language model, trained with Levanter on several token caches, by weights.

    Args:
        name: Of the step.
        components: Name → token cache; all made with one tokenizer. Each one's validation tokens are measured.
        model: As in ``train``.
        weights: Component → its share of the sequences, relative to the others'; 0 for one that is only measured. All
            the same if not given.
        tokenizer: That of the caches; to be said if none of them is a step of ``tokenize``.
        options: Of ``ExecutorStep`` and ``MixtureTrainConfig``. How often a training is measured and saved does not
            count, nor where it runs.

    Raises:
        ValueError: A weight is missing, negative, or of no component; all are 0; two caches are of different
            tokenizers; nothing says which tokenizer; or an option is a field of neither.
    """
    if not isinstance(components, Mapping) or not components:
        raise ValueError(
            f"components is {truncated_repr(components)}: give names and token caches, such as {{'web': tokens}}."
        )
    check_weights(components, weights)
    inputs = {
        "caches": ("tokens", components),
        "tokenizer_path": ("tokenizer", _tokenizer(components, tokenizer)),
        "model": ("model", model),
    }
    recipe = ("train_mixture", train_lm_on_mixture, MixtureTrainConfig, _ABOUT, _MEASURING, ("hf/**", *RESUMABLE))
    return recipe_step(name, recipe, inputs, options if weights is None else {"weights": weights, **options})


def _tokenizer(components: Mapping[str, Any], given: Any) -> Any:
    """The one tokenizer of all that say theirs.

    Raises:
        ValueError: There is none, or there are two.
    """
    known = {f"component {name!r}": declared_tokenizer(tokens) for name, tokens in components.items()}
    known |= {"the argument": InputName.hardcoded(given) if isinstance(given, str) else _whole(given)}
    said = [(who, tokenizer) for who, tokenizer in known.items() if tokenizer is not None]
    if not said:
        raise ValueError("tokenizer is missing: no token cache is a step whose config says which one it was made with.")
    for who, tokenizer in said[1:]:
        if tokenizer != said[0][1]:
            raise ValueError(
                f"{said[0][0]} has tokenizer {_shown(said[0][1])} and {who} {_shown(tokenizer)}: the same number "
                "means two texts then. Tokenize all components with one."
            )
    return said[0][1]


def _whole(value: Any) -> Any:
    return value.as_input_name() if isinstance(value, ExecutorStep) else value


def _shown(tokenizer: Any) -> str:
    """The step that makes it, or its path."""
    if isinstance(tokenizer, InputName):
        parts = [tokenizer.step.name if tokenizer.step else None, tokenizer.name]
        return "/".join(part for part in parts if part)
    return truncated_repr(tokenizer)
