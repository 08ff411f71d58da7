"""Whether every line of a fast job reaches the task's log, once and in order, and how late the last one is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.jobs_house import House
from benchmarks.jobs_logs import Carried, carried
from benchmarks.report import Table, ratio, seconds


@dataclass(frozen=True)
class Rate:
    """A job that prints ``per_second`` lines for ``seconds``."""

    per_second: int
    seconds: int

    @property
    def lines(self) -> int:
        return self.per_second * self.seconds


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
