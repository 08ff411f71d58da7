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
    """Measure a round of each kind in its own process."""
    per_zone = 8 if quick else 128
    measured = [Round(**in_fresh_process(rounds.measure, kind, per_zone, LATENCY_S)) for kind in KINDS]
    yield rounds_table(measured, per_zone)
    for cost in measured:
        yield at_most(f"a round, {cost.kind}", cost.seconds, MOST_SECONDS)
        yield at_most(f"its requests, {cost.kind}", cost.requests, cost.bound, "{:,.0f}".format)
        touched = "the dead only" if cost.is_exact else "others too"
        yield Goal(f"touched, {cost.kind}", "the dead only", touched, cost.is_exact)


def rounds_table(measured: Sequence[Round], per_zone: int) -> Table:
    """Return the cost of each round, and the bound of its requests."""
    table = Table(
        f"repair: one round over {per_zone * len(ZONES):,} nodes v4-8 in {len(ZONES)} zones, "
        f"{LATENCY_S * 1000:.0f} ms per request",
        (
            "nodes", "seconds", "dead", "mended", "others touched", "requests", "bound", "store", "client CPU",
            "server CPU", "memory",
        ),
        notes=(
            "bound: deletions, creations, the pages of both lists for each look, and up to 16 nodes a zone singly.",
            "CPU: seconds of the repairing process, and of the emulated Cloud TPU, on this machine.",
            "store: requests to the stores of the records. memory: peak of the repairing process.",
        ),
    )  # fmt: skip
    for cost in measured:
        counts = (cost.dead, cost.mended, cost.touched, cost.requests, cost.bound, cost.store_requests)
        cpu = (seconds(cost.client_cpu_s), seconds(cost.server_cpu_s))
        table.add(cost.kind, seconds(cost.seconds), *(f"{count:,}" for count in counts), *cpu, megabytes(cost.peak_mb))
    return table


def bench_restart(quick: bool) -> Iterator[Table | Goal]:
    """Measure a restart in its own process."""
    cost = RestartCost(**in_fresh_process(restart.measure, *((4, 2) if quick else (40, 10))))
    table = Table(
        f"restart: a head with {cost.unmanaged + cost.tasks} running jobs, {cost.tasks} of them of Airflow's tasks",
        ("jobs", "backup", "without a head", "restored after", "lost", "twice", "retries spent"),
        notes=(
            "backup: reading the unmanaged jobs, while all jobs run.",
            "without a head: the longest time without an answer of the Jobs API; Ray's launcher is not in it.",
            "restored after: from the head's answer until every unmanaged job is submitted again.",
        ),
    )
    times = map(seconds, (cost.backup_s, cost.headless_s, cost.restored_s))
    table.add(str(cost.unmanaged + cost.tasks), *times, *map(str, (cost.lost, cost.twice, cost.retries)))
    yield table
    for what, count in (("jobs lost", cost.lost), ("jobs twice", cost.twice), ("retries spent", cost.retries)):
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
