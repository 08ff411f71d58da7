"""The board's order agrees with its description of each pair of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tradewind.recipes.comparing.runs import RunResult
from tradewind.recipes.speedruns.board import Rules, rank_runs

VALUES = st.sampled_from([1.0, 2.0, 3.0, math.nan, math.inf])
COSTS = st.sampled_from([1.0, 2.0, 3.0, 4.0])
RUNS = st.lists(st.tuples(VALUES, COSTS), max_size=8).map(
    lambda points: [
        RunResult(str(at), results={"good": value, "cost": cost}) for at, (value, cost) in enumerate(points)
    ]
)


def is_better(one: RunResult, other: RunResult, higher: bool) -> bool:
    a, b = one.results["good"], other.results["good"]
    if not math.isfinite(a) or not math.isfinite(b):
        return math.isfinite(a) and not math.isfinite(b)
    return a > b if higher else a < b


@given(RUNS, st.booleans(), st.lists(COSTS, max_size=3))
def test_stars_ranks_and_budgets_match_definition(
    runs: Sequence[RunResult], higher: bool, budgets: list[float]
) -> None:
    entries = rank_runs(runs, {}, Rules("good", "cost", higher, budgets))
    assert sorted(entry.run.label for entry in entries) == sorted(run.label for run in runs)
    for entry in entries:
        run, cost = entry.run, entry.run.results["cost"]
        beaten = any(
            (is_better(other, run, higher) and other.results["cost"] <= cost)
            or (not is_better(run, other, higher) and other.results["cost"] < cost)
            for other in runs
        )
        assert entry.is_on_frontier == (math.isfinite(run.results["good"]) and not beaten)
        assert entry.budget == min((budget for budget in budgets if cost <= budget), default=None)
        group = [other for other in entries if other.budget == entry.budget]
        assert sorted(other.rank for other in group) == list(range(1, len(group) + 1))
        for other in group:
            is_as_good = not is_better(run, other.run, higher)
            if is_better(other.run, run, higher) or (is_as_good and other.run.results["cost"] < cost):
                assert other.rank < entry.rank
