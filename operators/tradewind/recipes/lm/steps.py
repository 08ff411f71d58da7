"""Step of a training on a mixture."""

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
    """Return a step that trains a language model with Levanter on several weighted token caches.

    Args:
        name: Name of the step.
        components: Name → token cache; all made with one tokenizer. The validation tokens of each are evaluated.
        model: As in ``train``.
        weights: Component → its share of the sequences, relative to the others; 0 for evaluation only. Equal if not
            given.
        tokenizer: Tokenizer of the caches; required if none of them is a step of ``tokenize``.
        options: Of ``ExecutorStep`` and ``MixtureTrainConfig``. How often a training is evaluated and saved does not
            count, nor where it runs.

    Raises:
        ValueError: A weight is missing, negative, or of no component; all are 0; two caches have different
            tokenizers; the tokenizer is unknown; or an option is a field of neither.
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
    """Return the common tokenizer of all known ones.

    Raises:
        ValueError: There is none, or there are two.
    """
    known = {f"component {name!r}": declared_tokenizer(tokens) for name, tokens in components.items()}
    argument = given.as_input_name() if isinstance(given, ExecutorStep) else given
    known["the argument"] = InputName.hardcoded(argument) if isinstance(argument, str) else argument
    given_by = [(owner, tokenizer) for owner, tokenizer in known.items() if tokenizer is not None]
    if not given_by:
        raise ValueError("tokenizer is missing: no token cache is a step whose config says which one it was made with.")
    first_owner, first = given_by[0]
    for owner, tokenizer in given_by[1:]:
        if tokenizer != first:
            raise ValueError(
                f"{first_owner} has tokenizer {_format(first)} and {owner} {_format(tokenizer)}, so the same number "
                "means two texts. Tokenize all components with one."
            )
    return first


def _format(tokenizer: Any) -> str:
    """Return the step that makes the tokenizer, or its path."""
    if isinstance(tokenizer, InputName):
        parts = [tokenizer.step.name if tokenizer.step else None, tokenizer.name]
        return "/".join(part for part in parts if part)
    return truncated_repr(tokenizer)
