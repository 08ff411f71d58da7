"""What the project wants of its plans, beside the figures of this run. Nothing fails when a goal is missed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.plans_costs import CLOUD, Planned
from benchmarks.plans_dags import EXPERIMENT, ONE_CALL, SELF_CHECK
from benchmarks.plans_runs import Run, medians_of
from benchmarks.report import Table, seconds

MOST_SECONDS = {1_000: 2.0, 10_000: 15.0}
"""For a plan of so many steps on gs://."""
MOST_MB = 500.0
MOST_OF_ONE_CALL = 1.5
BELOW_SELF_CHECK = 50.0

Row = tuple[str, str, str, str]


def goals_table(plans: Sequence[Planned], runs: Sequence[Run]) -> Table:
    """A row for each goal that this run has figures for."""
    table = Table("plans: goals", ("of ours", "goal", "here", "reached"))
    for row in [*_plan_goals(plans), *_run_goals(runs)]:
        table.add(*row)
    return table


def most_listings(steps: int) -> int:
    """How many listings a plan may make, however many objects it reads together."""
    return steps // 100 + 20


def _plan_goals(plans: Sequence[Planned]) -> Iterator[Row]:
    for one in plans:
        name = f"plan of {one.steps:,} steps, {one.store}"
        if one.store == CLOUD:
            if (most := MOST_SECONDS.get(one.steps)) is not None:
                yield name, f"< {most:g} s", seconds(one.seconds), _said(one.seconds < most)
            allowed = most_listings(one.steps)
            yield f"listings of a {name}", f"<= {allowed}", str(one.listings), _said(one.listings <= allowed)
        yield f"memory of a {name}", f"< {MOST_MB:.0f} MB", f"{one.peak_mb:.0f} MB", _said(one.peak_mb < MOST_MB)


def _run_goals(runs: Sequence[Run]) -> Iterator[Row]:
    medians = medians_of(runs)
    for case, median in medians.items():
        ours = medians.get(replace(case, kind=EXPERIMENT))
        if ours is None:
            continue
        if case.kind == ONE_CALL:
            name = f"run of {case.count:,} reused steps beside one bare call"
            yield (
                name,
                f"<= {MOST_OF_ONE_CALL:g} times",
                f"{ours / median:.2f} times",
                _said(ours <= MOST_OF_ONE_CALL * median),
            )
        elif case.kind == SELF_CHECK:
            faster = median / ours
            name = f"run of {case.count:,} reused steps beside a check in each task, {case.store}"
            yield (
                name,
                f">= {BELOW_SELF_CHECK:g} times faster",
                f"{faster:.1f} times",
                _said(faster >= BELOW_SELF_CHECK),
            )


def _said(reached: bool) -> str:
    return "yes" if reached else "no"
