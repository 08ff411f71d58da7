"""Whether every line of a fast job reaches the task's log, once and in order, and how late the last one is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.harness import Goal
from benchmarks.jobs.environment import House
from benchmarks.jobs.logs import LoggedLine
from benchmarks.report import Table, ratio, seconds

LINES_PER_SECOND = 2000
"""From which on none may be lost or repeated."""


@dataclass(frozen=True)
class Rate:
    """A job that prints ``per_second`` lines for ``seconds``."""

    per_second: int
    seconds: int

    @property
    def lines(self) -> int:
        return self.per_second * self.seconds


@dataclass(frozen=True)
class Carried:
    """What became of the lines of one job."""

    printed: int
    lost: int
    repeated: int
    in_order: bool
    lines_per_second: float
    """From the first line's print to the last line's log."""
    last_lag: float
    """Seconds from the last line's print to its place in the log."""


@dataclass(frozen=True)
class Lines:
    """What one way did with a job of one rate."""

    way: str
    rate: Rate
    carried: Carried


def lines_of(house: House, rates: Sequence[Rate]) -> Iterator[Lines]:
    """Run each job once, in the provider's first way."""
    way = house.provider.ways[0]
    for rate in rates:
        run = house.run_job(way.dag_id, rate.lines, float(rate.per_second))
        yield Lines(way.name, rate, carried(run.lines, rate.lines))


def carried(seen: Sequence[LoggedLine], printed: int) -> Carried:
    """Count what was ``seen`` of the lines 0 to ``printed`` - 1."""
    times = Counter(line.number for line in seen)
    numbers = [line.number for line in seen]
    took = max((line.logged for line in seen), default=0.0) - min((line.printed for line in seen), default=0.0)
    return Carried(
        printed=printed,
        lost=printed - len(times),
        repeated=len(seen) - len(times),
        in_order=numbers == sorted(numbers),
        lines_per_second=len(times) / took if took > 0 else 0.0,
        last_lag=seen[-1].logged - seen[-1].printed if seen else float("inf"),
    )


def lines_table(found: Sequence[Lines], rates: Sequence[Rate]) -> Table:
    """Every way beside ours."""
    table = Table(
        "jobs: a job's lines in the task's log",
        ("way", "printed", "for", "lines", "lost", "repeated", "in order", "carried", "÷ ours", "last line late by"),
        notes=("carried: lines in a second, from the first one's print to the last one's place in the log.",),
    )
    for rate in rates:
        rows = [one for one in found if one.rate == rate]
        ours = next((one.carried for one in rows if one.way == "ours"), None)
        for one in sorted(rows, key=lambda row: row.way != "ours"):
            result = one.carried
            table.add(
                one.way,
                f"{rate.per_second:,}/s",
                f"{rate.seconds} s",
                f"{result.printed:,}",
                f"{result.lost:,}",
                f"{result.repeated:,}",
                "yes" if result.in_order else "no",
                f"{result.lines_per_second:,.0f}/s",
                ratio(result.lines_per_second, ours.lines_per_second) if ours else "-",
                seconds(result.last_lag),
            )
    return table


def lines_goals(found: Sequence[Lines]) -> Iterator[Goal]:
    """None of ours lost or repeated."""
    for one in found:
        if one.way == "ours" and one.rate.per_second >= LINES_PER_SECOND:
            result = one.carried
            here = f"{result.lost} lost, {result.repeated} repeated"
            is_whole = not result.lost and not result.repeated and result.in_order
            yield Goal(f"{one.rate.per_second:,} lines in a second", "none lost or repeated", here, is_whole)
