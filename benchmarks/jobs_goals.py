"""What the project wants of its own figures, beside the figures of this run. Nothing fails when a goal is missed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.jobs_follow import Followed
from benchmarks.jobs_latency import BY_HAND, Latency
from benchmarks.jobs_lines import Lines
from benchmarks.report import Table, ratio, seconds

MOST_OVERHEAD_S = 1.0
LINES_PER_SECOND = 2000
END_SEEN_S = 2.0

Row = tuple[str, str, str, str]
_COSTS: dict[str, Callable[[Followed], float]] = {
    "CPU": lambda one: one.cpu_seconds,
    "requests": lambda one: one.requests,
    "bytes received": lambda one: one.received,
}


def goals_table(latencies: Sequence[Latency], followed: Sequence[Followed], lines: Sequence[Lines]) -> Table:
    """A row for each goal that this run has figures for."""
    table = Table("jobs: goals", ("of ours", "goal", "here", "reached"))
    for row in [*_overheads(latencies), *_following(followed), *_lines(lines)]:
        table.add(*row)
    return table


def _overheads(found: Sequence[Latency]) -> Iterator[Row]:
    by_hand = {one.job_seconds: one for one in found if one.way == BY_HAND}
    for one in found:
        if one.way == "ours" and one.job_seconds in by_hand:
            overhead = one.overhead(by_hand[one.job_seconds])
            name = f"overhead beyond `{BY_HAND}` and an empty task, {one.job_seconds} s job"
            yield name, f"< {MOST_OVERHEAD_S:g} s", f"{overhead:+.2f} s", _said(overhead < MOST_OVERHEAD_S)
        if one.way == "ours" and one.end_seen is not None:
            name = f"from the end of a {one.job_seconds} s job to its trigger's event"
            yield name, f"<= {END_SEEN_S:g} s", seconds(one.end_seen), _said(one.end_seen <= END_SEEN_S)


def _following(found: Sequence[Followed]) -> Iterator[Row]:
    """What following as many jobs costs, beside the peer for which it is least."""
    for ours in (one for one in found if one.way == "ours"):
        peers = [one for one in found if one.way != "ours" and one.jobs == ours.jobs]
        for name, figure in _COSTS.items():
            if peers:
                cheapest = min(peers, key=figure)
                here = ratio(figure(ours), figure(cheapest))
                reached = figure(ours) <= figure(cheapest)
                yield (
                    f"{name}, {ours.jobs} jobs, beside {cheapest.way}",
                    "<= 1.00 times",
                    f"{here} times",
                    _said(reached),
                )


def _lines(found: Sequence[Lines]) -> Iterator[Row]:
    for one in found:
        if one.way == "ours" and one.rate.per_second >= LINES_PER_SECOND:
            result = one.carried
            here = f"{result.lost} lost, {result.repeated} repeated"
            whole = not result.lost and not result.repeated and result.in_order
            yield f"{one.rate.per_second:,} lines in a second", "none lost or repeated", here, _said(whole)


def _said(reached: bool) -> str:
    return "yes" if reached else "no"
