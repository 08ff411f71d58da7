"""What runs are to those who compare them: their results, what was set in them, and their loss by step."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.steps.values.fields import PATH, FieldRule


def _are_runs(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and all(isinstance(label, str) and label.strip() and label.isprintable() for label in value)
    )


RUNS: Final = FieldRule("a mapping of labels to steps, such as {'lr=0.1': trained}", _are_runs)

BUDGETS: Final = FieldRule(
    "a list of numbers above 0, such as [1e21]",
    lambda value: isinstance(value, (list, tuple)) and all(is_positive(each) for each in value),
)


def is_positive(value: Any) -> bool:
    """Whether it is a finite number above 0."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


@dataclass(frozen=True)
class EndedRun:
    """A run that has a result.

    Attributes:
        label: How it is called in the comparison.
        settings: What counts in its version and that of the steps it was made from, by the name of the field; of two
            fields of one name that of the step nearer to the run.
        results: The numbers in what its function returned, those further in by path (``checkpoint.loss``).
        curve: The steps at which a loss was measured, and the losses; empty if the run is no training.
    """

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, float] = field(default_factory=dict)
    curve: tuple[Sequence[int], Sequence[float]] = ((), ())


def check_run_paths(runs: Mapping[str, str]) -> None:
    """Raise ``ValueError`` if one of the runs is no path."""
    for label, path in runs.items():
        PATH.check(f"runs[{label!r}]", path)


def differing_settings(runs: Sequence[EndedRun]) -> list[str]:
    """The names of the settings that are not the same in all runs, in the order in which they come up."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    return [name for name in names if any(_differs(run, runs[0], name) for run in runs)]


def _differs(run: EndedRun, other: EndedRun, name: str) -> bool:
    return (name in run.settings) != (name in other.settings) or run.settings.get(name) != other.settings.get(name)
