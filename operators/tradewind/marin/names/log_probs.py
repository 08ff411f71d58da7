"""``marin.evaluation.log_probs``: the step that measures a model's log probabilities on sets for evaluation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.evaluation.log_probs import evaluate_lm_log_probs
from tradewind.marin.legacy.classes import declare_marin_module
from tradewind.marin.names.steps import MarinStep
from tradewind.steps import ExecutorStep, InputName, this_output_path
from tradewind.text import truncated_repr

__all__ = ["EvalLmConfig", "default_lm_log_probs", "evaluate_lm_log_probs"]

_STEP: Final = re.compile(r"step-(\d+)")
_ON_HUB: Final = re.compile(r"[^/]+/[^/]+")


@dataclass
class EvalLmConfig:
    """Model, sets and resources of ``evaluate_lm_log_probs``."""

    name: str | None
    checkpoint_path: Any
    model: Any
    datasets: Any
    resource_config: Any
    per_device_batch_size: int = 4
    output_path: Any = field(default_factory=this_output_path)
    checkpoint_is_hf: bool = False
    log_entropy: bool = True
    max_samples_per_dataset: int | None = None
    wandb_tags: list[str] | None = None


def default_lm_log_probs(
    checkpoint: Any,
    model: Any,
    data: Any,
    resource_config: Any,
    checkpoint_is_hf: bool,
    per_device_batch_size: int = 4,
    max_samples_per_dataset: int | None = None,
    name: str | None = None,
    wandb_tags: Sequence[str] | None = None,
) -> ExecutorStep:
    """Return a step ``analysis/log_probs/{name}`` that measures perplexity and bits per byte of a model.

    Args:
        checkpoint: A checkpoint or an export: a step's output, a path, or ``organisation/name`` on the hub.
        model: Levanter's config of the model.
        data: The sets, such as ``mixture_for_evaluation({"name": tokens})``.
        resource_config: Where the step runs; does not count.
        checkpoint_is_hf: Whether it is an export.
        per_device_batch_size: Sequences at a time on each device.
        max_samples_per_dataset: Sequences of each set at most.
        name: Name of the model, by default that of the training with the step of the checkpoint.
        wandb_tags: Not used: the numbers are in the output.
    """
    named = name or _name_of(checkpoint)
    config = EvalLmConfig(
        name=named,
        checkpoint_path=checkpoint,
        model=model,
        datasets=data,
        resource_config=resource_config,
        per_device_batch_size=per_device_batch_size,
        checkpoint_is_hf=checkpoint_is_hf,
        max_samples_per_dataset=max_samples_per_dataset,
        wandb_tags=None if wandb_tags is None else list(wandb_tags),
    )
    about = f"Perplexity and bits per byte of {named}."
    return MarinStep(f"analysis/log_probs/{named}", evaluate_lm_log_probs, config, description=about)


def _name_of(checkpoint: Any) -> str:
    """Return the name of a training with the step of its checkpoint, or the last part of a name on the hub."""
    path = checkpoint.name if isinstance(checkpoint, InputName) else checkpoint
    parts = path.rstrip("/").split("/") if isinstance(path, str) else []
    if isinstance(checkpoint, InputName) and checkpoint.step is not None:
        run = checkpoint.step.name.rpartition("/")[2]
        if not path:
            return run
    elif isinstance(path, str) and (_ON_HUB.fullmatch(path) or "gcsfuse_mount/models" in path):
        return path.rpartition("/")[2]
    else:
        run = parts[-3] if len(parts) >= 3 else ""
    found = _STEP.fullmatch(parts[-1] if parts else "")
    if found is None or not run:
        raise ValueError(
            f"checkpoint={truncated_repr(checkpoint)} does not end with RUN/checkpoints/step-N, so it has no name: "
            "give name=..."
        )
    return f"{run}-{found[1]}"


declare_marin_module("marin.evaluation.log_probs", EvalLmConfig)
