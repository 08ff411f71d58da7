"""The tables about pods, and what the project wants of them. Nothing fails when a goal is missed."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.pods_function import CHECKPOINT_SECONDS
from benchmarks.pods_marks import Recovery
from benchmarks.pods_runs import OURS, PEER, RECOVERY_SECONDS, Kill, Pair
from benchmarks.report import Table, ratio, seconds

PARTS = ("detect", "end", "reserve", "start", "load", "compile")
MOST_DETECTION = 3.0
MOST_OF_PEER = 0.5
MOST_OVERHEAD = 0.01

Row = tuple[str, str, str, str]


def recovery_table(kills: Sequence[Kill]) -> Table:
    """The median of each runner, of the kills that it recovered from."""
    table = Table(
        "pods: from SIGKILL of a slice to the first step on another",
        ("runner", "kills", "recovered", "total", "ours ÷", *PARTS, "steps lost"),
        notes=(
            "detect and reserve overlap in ours: the next slice is reserved while the old one is ended.",
            f"Recovered: with a step on every host within {RECOVERY_SECONDS:g} s; the figures are of those.",
            f"A checkpoint comes every {CHECKPOINT_SECONDS:g} s. A dash: that runner does not tell.",
        ),
    )
    ours = _median(_recoveries(kills, OURS), "total")
    for runner in (OURS, PEER):
        recoveries, tried = _recoveries(kills, runner), sum(kill.runner == runner for kill in kills)
        if tried:
            total = _median(recoveries, "total")
            parts = [_median(recoveries, part) for part in PARTS]
            share = "-" if ours is None or total is None else ratio(ours, total)
            told = ["-" if part is None else seconds(part) for part in (total, *parts)]
            lost = f"<= {max(one.lost for one in recoveries)}" if recoveries else "-"
            table.add(runner, str(tried), str(len(recoveries)), told[0], share, *told[1:], lost)
    return table


def overhead_table(pairs: Sequence[Pair]) -> Table:
    """Each pair, and the median ratio."""
    table = Table(
        "pods: a step without faults",
        ("pair", "under our runner", "bare", "÷ bare"),
        notes=(
            "Two processes side by side, each with a copy of the model; the median step of both.",
            "The bare ones are as nice as Ray's workers are.",
        ),
    )
    for number, pair in enumerate(pairs, 1):
        table.add(str(number), seconds(pair.under_runner), seconds(pair.bare), f"{pair.under_runner / pair.bare:.4f}")
    return table


def goals_table(kills: Sequence[Kill], pairs: Sequence[Pair]) -> Table:
    """A row for each goal that this run has figures for."""
    table = Table("pods: goals", ("of ours", "goal", "here", "reached"))
    for row in [*_recovery_goals(kills), *_overhead_goals(pairs)]:
        table.add(*row)
    return table


def _recovery_goals(kills: Sequence[Kill]) -> Iterator[Row]:
    mine, peers = _recoveries(kills, OURS), _recoveries(kills, PEER)
    detect = _median(mine, "detect")
    if detect is not None:
        yield "detection of a lost slice", f"< {MOST_DETECTION:g} s", seconds(detect), _said(detect < MOST_DETECTION)
    if mine:
        worst = max(mine, key=lambda one: one.lost_s - one.interval_s)
        goal = f"<= {seconds(worst.interval_s)}, the checkpoint interval"
        yield "steps lost", goal, seconds(worst.lost_s), _said(worst.lost_s <= worst.interval_s)
    ours, peer = _median(mine, "total"), _median(peers, "total")
    if ours is not None and peer is not None:
        goal = f"<= {MOST_OF_PEER:g} times"
        yield f"whole recovery beside {PEER}", goal, f"{ours / peer:.2f} times", _said(ours <= MOST_OF_PEER * peer)


def _overhead_goals(pairs: Sequence[Pair]) -> Iterator[Row]:
    if pairs:
        overhead = statistics.median(pair.under_runner / pair.bare for pair in pairs) - 1
        yield "overhead of the runner", f"< {MOST_OVERHEAD:.0%}", f"{overhead:+.2%}", _said(overhead < MOST_OVERHEAD)


def _recoveries(kills: Sequence[Kill], runner: str) -> list[Recovery]:
    return [kill.recovery for kill in kills if kill.runner == runner and kill.recovery is not None]


def _median(recoveries: Sequence[Recovery], part: str) -> float | None:
    found = [value for one in recoveries if (value := getattr(one, part)) is not None]
    return statistics.median(found) if found else None


def _said(reached: bool) -> str:
    return "yes" if reached else "no"
