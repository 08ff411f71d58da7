"""``python -m benchmarks.repair [--quick]``: one pass of a repair over many slices, in seconds and in requests.

The Cloud TPU of the rehearsal serves in a process of its own and takes 50 ms for every answer; the records are in a
store that takes as long. Figures are comparable within one run only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from benchmarks.harness import Goal, at_most, bench
from benchmarks.repair.passes import KINDS, Pass, bound, measure
from benchmarks.report import Table, seconds

MOST_SECONDS = 15.0
LATENCY_S = 0.05


def bench_passes(quick: bool) -> Iterator[Table | Goal]:
    """Measure a pass of each kind."""
    logging.disable(logging.WARNING)  # a line for each slice
    count = 24 if quick else 1024
    passes = [measure(kind, count, LATENCY_S) for kind in KINDS]
    yield passes_table(passes, count)
    yield from (at_most(f"a pass, {one.kind}", one.seconds, MOST_SECONDS) for one in passes)


def passes_table(passes: Sequence[Pass], count: int) -> Table:
    """What each pass took, beside what it may ask."""
    table = Table(
        f"repair: one pass over {count:,} nodes v4-8, {LATENCY_S * 1000:.0f} ms per request",
        (
            "nodes",
            "seconds",
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
        cells = (one.deletions, one.creations, one.requests, bound(one), one.store_requests)
        cpu = (seconds(one.client_cpu_s), seconds(one.server_cpu_s))
        table.add(one.kind, seconds(one.seconds), *(f"{cell:,}" for cell in cells), *cpu, str(one.passes))
    return table


if __name__ == "__main__":
    bench("repair", __doc__, {"passes": bench_passes})
