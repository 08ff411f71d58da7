"""Recovery from SIGKILL of the slice that trains, under Tradewind's runner and the peer, until another one trains."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.harness import Goal, at_most, median
from benchmarks.pods.cluster import WARM_SECONDS, TrainingPod, cluster, timeline_of
from benchmarks.pods.driver import OURS, PEER
from benchmarks.pods.function import CHECKPOINT_SECONDS
from benchmarks.pods.measurements import Recovery, read_marks, recovery_of
from benchmarks.report import Table, ratio, seconds, times

PARTS = ("detect", "end", "reserve", "start", "load", "compile")
RECOVERY_SECONDS: Final = 120.0
"""A runner without a step in this time has not recovered."""
MOST_DETECTION = 3.0
MOST_OF_PEER = 0.5


@dataclass(frozen=True)
class Kill:
    """A slice killed under a runner."""

    runner: str
    recovery: Recovery | None
    """None if it made no step in ``RECOVERY_SECONDS``."""


def bench_recovery(quick: bool) -> Iterator[Table | Goal]:
    """Kill the slice that trains, alternately under both runners.

    Each kill has its own cluster: the peer may wait forever in one with records of dead slices.
    """
    kills = [_killed(runner) for _ in range(1 if quick else 3) for runner in (OURS, PEER)]
    yield recovery_table(kills)
    yield from recovery_goals(kills)


def _killed(runner: str) -> Kill:
    with cluster() as ray, ray.training(runner) as pod:
        time.sleep(WARM_SECONDS)
        victim = pod.slice_at_work()
        killed = time.time()
        ray.local.kill_slice(victim)
        return Kill(runner, _recovered(runner, pod, killed))


def _recovered(runner: str, pod: TrainingPod, killed: float) -> Recovery | None:
    while time.time() < killed + RECOVERY_SECONDS:
        if found := recovery_of(runner, killed, read_marks(pod.folder), timeline_of(pod.folder)):
            return found
        time.sleep(0.2)
    return None


def recovery_table(kills: Sequence[Kill]) -> Table:
    """Return the medians of each runner over the kills from which it recovered."""
    table = Table(
        "pods: from SIGKILL of a slice to the first step on another",
        ("runner", "kills", "recovered", "total", "ours ÷", *PARTS, "steps lost"),
        notes=(
            "detect and reserve overlap in ours: the next slice is reserved while the old one is ended.",
            f"Recovered: with a step on every host within {RECOVERY_SECONDS:g} s; the figures are of those.",
            f"A checkpoint comes every {CHECKPOINT_SECONDS:g} s. A dash: that runner does not report it.",
        ),
    )
    ours = _median(_recoveries(kills, OURS), "total")
    for runner in (OURS, PEER):
        recoveries, tried = _recoveries(kills, runner), sum(kill.runner == runner for kill in kills)
        if tried:
            total, *parts = (_median(recoveries, part) for part in ("total", *PARTS))
            share = "-" if ours is None or total is None else ratio(ours, total)
            cells = ["-" if part is None else seconds(part) for part in (total, *parts)]
            lost = f"<= {max(recovery.lost for recovery in recoveries)}" if recoveries else "-"
            table.add(runner, str(tried), str(len(recoveries)), cells[0], share, *cells[1:], lost)
    return table


def recovery_goals(kills: Sequence[Kill]) -> Iterator[Goal]:
    """Yield the limits of a lost slice under Tradewind's runner."""
    mine = _recoveries(kills, OURS)
    detect, ours, peer = _median(mine, "detect"), _median(mine, "total"), _median(_recoveries(kills, PEER), "total")
    if detect is not None:
        yield at_most("detection of a lost slice", detect, MOST_DETECTION)
    if mine:
        worst = max(mine, key=lambda one: one.lost_s - one.interval_s)
        yield at_most("steps lost beside the checkpoint interval", worst.lost_s, worst.interval_s)
    if ours is not None and peer is not None:
        yield at_most(f"whole recovery beside {PEER}", ours / peer, MOST_OF_PEER, times)


def _recoveries(kills: Sequence[Kill], runner: str) -> list[Recovery]:
    return [kill.recovery for kill in kills if kill.runner == runner and kill.recovery is not None]


def _median(recoveries: Sequence[Recovery], part: str) -> float | None:
    return median(getattr(one, part) for one in recoveries)
