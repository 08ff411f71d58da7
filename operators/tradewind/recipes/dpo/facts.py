"""What a training by preferences will do and what it has done, in numbers and in the lines of the task's log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tradewind.recipes.dpo.pairs import counted
from tradewind.recipes.lm.facts import TrainingFacts, facts_of, losses, training_ends, training_lines

DPO_MEASURES: Final = ("train/dpo_*", "eval/*/dpo_*")
"""Patterns of what Levanter measures besides the losses."""
_PASSES: Final = 4
"""What a sequence costs, in forward passes: the model's, its backward pass (two of them), and the reference's."""


def dpo_facts(made: Any) -> TrainingFacts:
    """Of the config that Levanter will run, on the devices that there are."""
    return facts_of(made, together=2, passes=_PASSES)


def dpo_beginning(facts: TrainingFacts, made: Any) -> list[str]:
    """What will be trained, and by which preferences."""
    pairs = counted(made)
    told = [f"{pairs[0]:,} pairs to train on, {pairs[1]:,} cut off for validation"] if pairs else []
    reference = getattr(made.reference, "model_path", None) or "the model without its adapter"
    return training_lines(facts, made, [*told, f"beta {made.beta:g}, reference {reference}"])


def dpo_losses(last: Mapping[str, Any]) -> dict[str, Any]:
    """The losses in what was measured at the last step, and how well the model prefers what was chosen.

    Of several validation sets it is the mean of all: Levanter measures each by itself.
    """
    found = losses(last)
    sets = found["eval_losses"]
    return found | {
        "eval_loss": _mean([*sets.values()]),
        "accuracy": _mean([last.get(f"eval/{name}/dpo_accuracy") for name in sets]),
        "margin": _mean([_margin(last, f"eval/{name}") for name in sets]),
        "train_accuracy": last.get("train/dpo_accuracy"),
        "train_margin": _margin(last, "train"),
    }


def dpo_ending(result: Mapping[str, Any]) -> list[str]:
    """What came out."""
    measured = [
        f"{where}: {result[f'{prefix}accuracy']:.1%} of the pairs preferred as chosen, margin of rewards "
        f"{result[f'{prefix}margin']:.3f}"
        for where, prefix in (("last step", "train_"), ("validation", ""))
        if result[f"{prefix}accuracy"] is not None
    ]
    return training_ends(result, measured)


def _margin(measured: Mapping[str, Any], where: str) -> float | None:
    chosen, rejected = (measured.get(f"{where}/dpo_{side}_reward") for side in ("chosen", "rejected"))
    return None if chosen is None or rejected is None else chosen - rejected


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
