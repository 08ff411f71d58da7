"""The order of a board: runs by their metric, under the smallest compute budget that each fits in.

A run is on the frontier if none is better for as little, or as good for less. Equal runs are on it together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.recipes.comparing.runs import EndedRun

OPEN: Final = "open"
"""What the runs are under that cost more than every budget, or where there are no budgets."""


@dataclass(frozen=True)
class Entry:
    """A run on the board.

    Attributes:
        run: With its numbers.
        about: ``author`` and ``description``, where the run says so.
        budget: The smallest one that it fits in; None for an open one.
        rank: Among those under that budget, from 1.
        is_on_frontier: Whether no run is better for as little, or as good for less.
    """

    run: EndedRun
    about: Mapping[str, Any] = field(default_factory=dict)
    budget: float | None = None
    rank: int = 0
    is_on_frontier: bool = False


@dataclass(frozen=True)
class Rules:
    """What a board is ordered by.

    Attributes:
        metric: The number that decides.
        cost: The number that budgets are of.
        budgets: Of the groups; none, and all are one group.
    """

    metric: str
    cost: str
    higher_is_better: bool = False
    budgets: Sequence[float] = ()

    def value(self, run: EndedRun) -> float:
        """What is smaller the better the run is; infinite for one that diverged."""
        value = run.results[self.metric]
        if not math.isfinite(value):
            return math.inf
        return -value if self.higher_is_better else value

    def budget_of(self, run: EndedRun) -> float | None:
        """The smallest budget that the run fits in."""
        fitting = [budget for budget in self.budgets if run.results[self.cost] <= budget]
        return min(fitting, default=None)


def ranked(runs: Sequence[EndedRun], about: Mapping[str, Mapping[str, Any]], rules: Rules) -> list[Entry]:
    """The smallest budget first, and in each the best run; of equals, the cheaper one, then the one given first."""
    frontier = set(_frontier(runs, rules))
    entries: list[Entry] = []
    for budget in [*sorted(set(rules.budgets)), None]:
        group = [run for run in runs if rules.budget_of(run) == budget]
        ordered = sorted(group, key=lambda run: (rules.value(run), run.results.get(rules.cost, math.inf)))
        entries += [
            Entry(run, about.get(run.label, {}), budget, rank, run.label in frontier)
            for rank, run in enumerate(ordered, 1)
        ]
    return entries


def _frontier(runs: Sequence[EndedRun], rules: Rules) -> Iterator[str]:
    best = (0.0, math.inf)
    costed = [run for run in runs if rules.cost in run.results]
    for run in sorted(costed, key=lambda run: (run.results[rules.cost], rules.value(run))):
        point = (run.results[rules.cost], rules.value(run))
        if point[1] < best[1] or point == best:
            best = point
            yield run.label


def named(budget: float | None) -> str:
    """A budget as the board shows it, such as ``1e+18``."""
    return OPEN if budget is None else f"{budget:g}"
