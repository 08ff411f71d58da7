"""``python -m benchmarks.pods [--quick] [--parts PART...]``: what a lost slice costs, and what the pod runner costs.

Figures are comparable within one run only.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence

from benchmarks.pods_goals import goals_table, overhead_table, recovery_table
from benchmarks.pods_runs import FULL, QUICK, Kill, Pair, Size, measure_overhead, measure_recoveries
from benchmarks.report import Table
from benchmarks.run import machine

PARTS = ("recovery", "overhead")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the parts that are named, or all of them, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pods", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="once each, and shorter: shows that it works")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args(argv)
    print(machine(), end="\n\n", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is stopped
    for table in _tables(arguments.parts, QUICK if arguments.quick else FULL):
        print(table.text(), flush=True)


def _tables(parts: Sequence[str], size: Size) -> Iterator[Table]:
    kills: list[Kill] = []
    pairs: list[Pair] = []
    if "recovery" in parts:
        kills += measure_recoveries(size)
        yield recovery_table(kills)
    if "overhead" in parts:
        pairs += measure_overhead(size)
        yield overhead_table(pairs)
    yield goals_table(kills, pairs)


if __name__ == "__main__":
    main()
