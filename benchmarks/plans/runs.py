"""Runs whose steps are all finished, compared with bare skipping and with a check in each task.

The bare call is compared where outputs are on this machine's disk, the check where they are in a Cloud Storage, too: a
process that looks there loads its client first, and it matters whether one process does or each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.airflow.dags import EXPERIMENT, ONE_CALL, SELF_CHECK
from benchmarks.airflow.runs import CLOUD, LOCAL, Case, Run, measure_runs, medians_of, runs_table
from benchmarks.harness import Goal, at_most
from benchmarks.report import Table, times

SHAPE = "fan"
MOST_OF_ONE_CALL = 1.5
BELOW_SELF_CHECK = 50.0


def bench_runs(quick: bool) -> Iterator[Table | Goal]:
    """Run each DAG; of how many steps, how often and for how long at most depends on whether it must be ``quick``."""
    skipped, checked, repeats, budget_s = (20, 20, 1, 120.0) if quick else (1_000, 500, 3, 300.0)
    runs = measure_runs(airflows(skipped, checked, repeats), budget_s)
    yield runs_table("plans: a run whose steps are all finished, in a real Airflow", runs)
    yield from run_goals(runs)


def airflows(skipped: int, checked: int, repeats: int) -> list[list[Case]]:
    """Return the cases of each Airflow. Checks may be aborted; the two similar cases alternate."""
    alike = [Case(EXPERIMENT, SHAPE, skipped), Case(ONE_CALL, SHAPE, skipped)] * repeats
    beside_checks = [Case(EXPERIMENT, SHAPE, checked, store) for store in (LOCAL, CLOUD)] * repeats
    return [beside_checks + alike, *([Case(SELF_CHECK, SHAPE, checked, store)] for store in (LOCAL, CLOUD))]


def run_goals(runs: Sequence[Run]) -> Iterator[Goal]:
    """Yield the limits of a run of Tradewind relative to each peer of the same size."""
    medians = medians_of(runs)
    for case, median in medians.items():
        ours, name = medians.get(replace(case, kind=EXPERIMENT), 0.0), f"run of {case.count:,} reused steps beside"
        if ours and case.kind == ONE_CALL:
            yield at_most(f"{name} one bare call", ours / median, MOST_OF_ONE_CALL, times)
        elif ours and case.kind == SELF_CHECK:
            what = f"{name} a check in each task, {case.store}"
            faster = median / ours
            wanted = f">= {BELOW_SELF_CHECK:g} times faster"
            yield Goal(what, wanted, f"{faster:.1f} times", faster >= BELOW_SELF_CHECK)
