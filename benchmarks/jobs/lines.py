"""Delivery of a fast job's lines to the task's log: lost, repeated and reordered lines, and the last one's lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.harness import Goal
from benchmarks.jobs.environment import JobsEnvironment
from benchmarks.jobs.logs import LoggedLine
from benchmarks.report import Table, ratio, seconds

LINES_PER_SECOND = 2000
"""From which on none may be lost or repeated."""


@dataclass(frozen=True)
class Rate:
    """Rate of a job that prints ``per_second`` lines for ``seconds``."""

    per_second: int
    seconds: int

    @property
    def lines(self) -> int:
        return self.per_second * self.seconds


@dataclass(frozen=True)
class Carried:
    """Delivery of the lines of one job."""

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
    """Result of one way for a job of one rate."""

    way: str
    rate: Rate
    carried: Carried


def lines_of(environment: JobsEnvironment, rates: Sequence[Rate]) -> Iterator[Lines]:
    """Run each job once, in the provider's first way."""
    way = environment.provider.ways[0]
    for rate in rates:
        run = environment.run_job(way.dag_id, rate.lines, float(rate.per_second))
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


def lines_table(measured: Sequence[Lines], rates: Sequence[Rate]) -> Table:
    """Return a row for every way, compared with Tradewind."""
    table = Table(
        "jobs: a job's lines in the task's log",
        ("way", "printed", "for", "lines", "lost", "repeated", "in order", "carried", "÷ ours", "last line late by"),
        notes=("carried: lines in a second, from the first one's print to the last one's place in the log.",),
    )
    for rate in rates:
        rows = [row for row in measured if row.rate == rate]
        ours = next((row.carried for row in rows if row.way == "ours"), None)
        for row in sorted(rows, key=lambda row: row.way != "ours"):
            result = row.carried
            table.add(
                row.way,
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


def lines_goals(measured: Sequence[Lines]) -> Iterator[Goal]:
    """Yield the goals: Tradewind loses and repeats no line."""
    for row in measured:
        if row.way == "ours" and row.rate.per_second >= LINES_PER_SECOND:
            result = row.carried
            here = f"{result.lost} lost, {result.repeated} repeated"
            is_whole = not result.lost and not result.repeated and result.in_order
            yield Goal(f"{row.rate.per_second:,} lines in a second", "none lost or repeated", here, is_whole)
