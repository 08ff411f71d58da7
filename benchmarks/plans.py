"""``python -m benchmarks.plans [--quick] [--parts PART...]``: what it takes to find out that nothing need run.

Figures are comparable within one run only.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks import plans_runs
from benchmarks.plans_costs import Planned, measure_plans, plans_table
from benchmarks.plans_goals import goals_table
from benchmarks.plans_runs import Run, measure_runs, runs_table
from benchmarks.report import Table
from benchmarks.run import machine

PARTS = ("plans", "runs")


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    plans: Sequence[int]
    repeats: int
    runs: plans_runs.Size


FULL = Size((1_000, 10_000), 3, plans_runs.FULL)
QUICK = Size((100,), 1, plans_runs.QUICK)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the parts that are named, or all of them, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, once each: shows that it works")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args(argv)
    print(machine(), end="\n\n", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is stopped
    for table in _tables(arguments.parts, QUICK if arguments.quick else FULL):
        print(table.text(), flush=True)


def _tables(parts: Sequence[str], size: Size) -> Iterator[Table]:
    plans: list[Planned] = []
    runs: list[Run] = []
    if "plans" in parts:
        plans += measure_plans(size.plans, size.repeats)
        yield plans_table(plans)
    if "runs" in parts:
        runs += measure_runs(size.runs)
        yield runs_table(runs)
    yield goals_table(plans, runs)


if __name__ == "__main__":
    main()
