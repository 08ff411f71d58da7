"""``python -m benchmarks.fleet [--quick]``: a round of repair, a restart with many jobs, and cluster files, in seconds.

The Cloud TPU of the rehearsal serves eight zones in a process of its own and takes 50 ms for every answer; the records
are in a store that takes as long. Figures are comparable within one run only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from benchmarks.fleet import configs, restart, rounds
from benchmarks.fleet.restart import RestartCost
from benchmarks.fleet.rounds import KINDS, ZONES, Round
from benchmarks.harness import Goal, at_most, bench
from benchmarks.processes import in_fresh_process
from benchmarks.report import Table, megabytes, seconds

MOST_SECONDS = 15.0
MOST_SECONDS_OF_CONFIGS = 2.0
LATENCY_S = 0.05


def bench_rounds(quick: bool) -> Iterator[Table | Goal]:
    """Measure a round of each kind, each in a process of its own."""
    per_zone = 8 if quick else 128
    found = [Round(**in_fresh_process(rounds.measure, kind, per_zone, LATENCY_S)) for kind in KINDS]
    yield rounds_table(found, per_zone)
    for one in found:
        yield at_most(f"a round, {one.kind}", one.seconds, MOST_SECONDS)
        yield at_most(f"its requests, {one.kind}", one.requests, one.bound, "{:,.0f}".format)
        yield Goal(f"touched, {one.kind}", "the dead only", "the dead only" if one.is_exact else "not so", one.is_exact)


def rounds_table(found: Sequence[Round], per_zone: int) -> Table:
    """What each round took, beside what it may ask."""
    table = Table(
        f"repair: one round over {per_zone * len(ZONES):,} nodes v4-8 in {len(ZONES)} zones, "
        f"{LATENCY_S * 1000:.0f} ms per request",
        (
            "nodes", "seconds", "dead", "mended", "others touched", "requests", "bound", "store", "client CPU",
            "server CPU", "memory",
        ),
        notes=(
            "bound: deletions, creations, the pages of both lists for each look, and up to 16 nodes a zone singly.",
            "CPU: seconds of the process that repairs, and of the one that is the Cloud TPU, on this machine.",
            "store: requests to the stores of the records. memory: the most that the process which repairs had.",
        ),
    )  # fmt: skip
    for one in found:
        counts = (one.dead, one.mended, one.touched, one.requests, one.bound, one.store_requests)
        cpu = (seconds(one.client_cpu_s), seconds(one.server_cpu_s))
        table.add(one.kind, seconds(one.seconds), *(f"{count:,}" for count in counts), *cpu, megabytes(one.peak_mb))
    return table


def bench_restart(quick: bool) -> Iterator[Table | Goal]:
    """Measure a restart, in a process of its own."""
    one = RestartCost(**in_fresh_process(restart.measure, *((4, 2) if quick else (40, 10))))
    table = Table(
        f"restart: a head with {one.people + one.tasks} running jobs, {one.tasks} of them of Airflow's tasks",
        ("jobs", "kept in", "without a head", "back after", "lost", "twice", "retries spent"),
        notes=(
            "kept in: the jobs of people are read, and all of them run on.",
            "without a head: the longest time without an answer of the Jobs API; Ray's launcher is not in it.",
            "back after: from the head's answer until every job of a person is submitted again.",
        ),
    )
    times = map(seconds, (one.kept_s, one.headless_s, one.returned_s))
    table.add(str(one.people + one.tasks), *times, *map(str, (one.lost, one.twice, one.retries)))
    yield table
    for what, count in (("jobs lost", one.lost), ("jobs twice", one.twice), ("retries spent", one.retries)):
        yield at_most(f"a restart: {what}", count, 0, "{:.0f}".format)


def bench_configs(quick: bool) -> Iterator[Table | Goal]:
    """Measure ``update-configs``."""
    cost = configs.measure(10 if quick else 100)
    table = Table("update-configs: the whole command", ("clusters", "only its help", "writes all", "finds none stale"))
    table.add(str(cost.clusters), *map(seconds, (cost.python_s, cost.write_s, cost.check_s)))
    yield table
    yield at_most("update-configs", cost.write_s, MOST_SECONDS_OF_CONFIGS)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    bench("fleet", __doc__, {"rounds": bench_rounds, "restart": bench_restart, "configs": bench_configs})
