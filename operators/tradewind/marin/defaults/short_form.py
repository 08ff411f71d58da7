"""``default_train`` without a ``SimpleTrainConfig``: a ``train`` with Marin's names of steps.

Everything that the weights depend on counts in the version, whether it was given or not; how often something is
measured, saved or printed, and where it runs, does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tradewind.recipes.metrics.trackers import WandbOptions
from tradewind.recipes.steps import naming_step, training
from tradewind.recipes.train_config import LmTrainConfig
from tradewind.steps import ExecutorStep
from tradewind.steps.values.fields import TEXTS

_COUNTED: Final = {name: getattr(LmTrainConfig, name) for name in ("weight_decay", "seed")}
"""Settings with a default that the weights depend on."""


@naming_step
def short_form(
    name: str,
    tokenized: Any,
    model: Any,
    *,
    tokenizer: Any = None,
    tags: Sequence[str] = (),
    of_step: Mapping[str, Any],
    **options: Any,
) -> ExecutorStep:
    """The step ``checkpoints/{name}`` of ``train``.

    Args:
        name: Of the run.
        tokenized: The step that made the token cache, or the cache's path.
        model: As in ``tradewind.recipes.steps.train``.
        tokenizer: The tokenizer's step or path; the one that ``tokenized`` was made with if not given.
        tags: For the run at W&B, if there is one.
        of_step: Fields of ``ExecutorStep``.
        options: Fields of ``LmTrainConfig``, and others of ``ExecutorStep``.

    Raises:
        ValueError: An option is a field of neither, or does not fit, or nothing says which tokenizer.
    """
    TEXTS.check("tags", tags)
    wandb = options.get("wandb")
    if isinstance(wandb, WandbOptions) and tags:
        options["wandb"] = dataclasses.replace(wandb, tags=(*wandb.tags, *tags))
    given = {**_COUNTED, **options, **of_step}
    return training("default_train", f"checkpoints/{name}", tokenized, tokenizer, model, given)
