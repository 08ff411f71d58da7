"""``default_train``: a training as one step, in the manner of Marin's function of that name.

Everything that the weights depend on counts in the version, whether it was given or not; how often something is
measured, saved or printed, and where it runs, does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tradewind.recipes.metrics.trackers import WandbOptions
from tradewind.recipes.steps import naming_step, training
from tradewind.recipes.train_config import LmTrainConfig
from tradewind.steps import ExecutorStep, InputName, Resources
from tradewind.steps.values.fields import TEXTS

_COUNTED = ("num_train_steps", "learning_rate", "batch_size", "seq_len", "weight_decay", "seed")


@naming_step
def default_train(
    name: str,
    tokenized: ExecutorStep | InputName | str,
    model: Any = "tiny",
    *,
    tokenizer: ExecutorStep | InputName | str | None = None,
    resources: Resources | None = None,
    tags: Sequence[str] = (),
    description: str | None = None,
    override_output_path: str | None = None,
    cluster: str | None = None,
    secrets: Mapping[str, str] | None = None,
    **settings: Any,
) -> ExecutorStep:
    """A step ``checkpoints/{name}`` that trains ``model`` on ``tokenized`` with Levanter.

    Args:
        name: Of the run.
        tokenized: The step that made the token cache, or the cache's path.
        model: As in ``tradewind.recipes.steps.train``.
        tokenizer: The tokenizer's step or path; the one that ``tokenized`` was made with if not given.
        resources: Where it runs, such as ``TpuSlice("v4-16")``; one CPU of the cluster if not given.
        tags: For the run at W&B, if there is one.
        description: For people.
        override_output_path: As in ``ExecutorStep``.
        cluster: As in ``ExecutorStep``.
        secrets: As in ``ExecutorStep``; ``WANDB_API_KEY`` for W&B online.
        settings: Fields of ``LmTrainConfig``.

    Raises:
        ValueError: A setting is no field of ``LmTrainConfig`` or does not fit, or nothing says which tokenizer.
    """
    TEXTS.check("tags", tags)
    defaults = {field.name: field.default for field in dataclasses.fields(LmTrainConfig) if field.name in _COUNTED}
    of_step = {
        "resources": resources,
        "description": description,
        "override_output_path": override_output_path,
        "cluster": cluster,
        "secrets": secrets,
    }
    options = defaults | _with_tags(settings, tags) | of_step
    return training("default_train", f"checkpoints/{name}", tokenized, tokenizer, model, options)


def _with_tags(settings: dict[str, Any], tags: Sequence[str]) -> dict[str, Any]:
    wandb = settings.get("wandb")
    if not isinstance(wandb, WandbOptions) or not tags:
        return settings
    return settings | {"wandb": dataclasses.replace(wandb, tags=(*wandb.tags, *tags))}
