"""``python -m benchmarks.repair [--quick]``: one pass of a repair over many slices, in seconds and in requests.

The Cloud TPU of the rehearsal serves in a process of its own and takes 50 ms for every answer; the records are in a
store that takes as long. Figures are comparable within one run only.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence

from benchmarks.repair_passes import KINDS, Pass, bound, measure
from benchmarks.report import Table, seconds
from benchmarks.run import machine

MOST_SECONDS = 15.0
LATENCY_S = 0.05


def main(argv: Sequence[str] | None = None) -> None:
    """Measure a pass of each kind, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.repair", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="24 nodes instead of 1,024: shows that it works")
    arguments = parser.parse_args(argv)
    logging.disable(logging.WARNING)  # a line for each slice
    print(machine(), end="\n\n", flush=True)
    count = 24 if arguments.quick else 1024
    print(passes_table([measure(kind, count, LATENCY_S) for kind in KINDS], count).text(), flush=True)


def passes_table(passes: Sequence[Pass], count: int) -> Table:
    """What each pass took, beside what it may."""
    table = Table(
        f"repair: one pass over {count:,} nodes v4-8, {LATENCY_S * 1000:.0f} ms per request",
        (
            "nodes",
            "seconds",
            "goal",
            "deletions",
            "creations",
            "requests",
            "bound",
            "store",
            "client CPU",
            "server CPU",
            "passes more",
        ),
        notes=(
            "bound: deletions, creations, the pages of both lists for each look, and up to 16 nodes read singly.",
            "CPU: seconds of the process that repairs, and of the one that is the Cloud TPU, on this machine.",
            "store: requests to the store of the records. passes more: until one finds every slice at work.",
        ),
    )
    for one in passes:
        goal = f"{'met' if one.seconds < MOST_SECONDS else 'missed'} (< {MOST_SECONDS:.0f} s)"
        cells = (one.deletions, one.creations, one.requests, bound(one), one.store_requests)
        cpu = (seconds(one.client_cpu_s), seconds(one.server_cpu_s))
        table.add(one.kind, seconds(one.seconds), goal, *(f"{cell:,}" for cell in cells), *cpu, str(one.passes))
    return table


if __name__ == "__main__":
    main()
