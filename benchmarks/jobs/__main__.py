"""``python -m benchmarks.jobs [--quick] [OPTION...]``: Ray jobs from Airflow, by our operator and by its peers'.

Everything runs on one Ray head, behind a proxy that counts; each provider has an Airflow of its own, one after the
other. Figures are comparable within one run only.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from benchmarks.harness import Goal, arguments_of, begin, show
from benchmarks.jobs.environment import JobsEnvironment, ray_head, running_airflow
from benchmarks.jobs.follow import Followed, costs_of, follow_goals, follow_table, sizes_for, submit_waiting
from benchmarks.jobs.latency import Latency, by_hand, latencies_of, latency_goals, latency_table
from benchmarks.jobs.lines import Lines, Rate, lines_goals, lines_of, lines_table
from benchmarks.jobs.peers import PROVIDERS, Provider, available
from benchmarks.jobs.proxy import CountingProxy
from benchmarks.report import Table

Figure = TypeVar("Figure")
PARTS = ("latency", "lines", "follow")


@dataclass(frozen=True)
class Size:
    """Extent of a measurement."""

    job_seconds: Sequence[int]
    repeats: int
    rates: Sequence[Rate]
    jobs: Sequence[int]
    window: float
    settle: float
    finished: int
    """Number of ended jobs in the head's GCS."""


FULL = Size((1, 30), 2, (Rate(200, 30), Rate(2000, 10)), (1, 20, 50, 300), 60.0, 15.0, 5000)
QUICK = Size((1,), 1, (Rate(2000, 3),), (1, 20), 15.0, 5.0, 0)


@dataclass
class Figures:
    """Figures measured so far."""

    latencies: list[Latency] = field(default_factory=list)
    lines: list[Lines] = field(default_factory=list)
    followed: list[Followed] = field(default_factory=list)

    def tables(self, size: Size) -> Iterator[Table | Goal]:
        """Yield a table for each measured part, and its goals."""
        if self.latencies:
            yield latency_table(self.latencies, size.job_seconds)
        if self.followed:
            yield follow_table(self.followed)
        if self.lines:
            yield lines_table(self.lines, size.rates)
        yield from [*latency_goals(self.latencies), *follow_goals(self.followed), *lines_goals(self.lines)]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what the options ask for, and print the tables."""
    parser = arguments_of("jobs", __doc__, PARTS)
    names = [provider.name for provider in PROVIDERS]
    parser.add_argument("--providers", nargs="+", choices=names, default=names)
    parser.add_argument("--jobs", nargs="+", type=int, metavar="N", help="how many jobs are followed at once")
    parser.add_argument("--finished", type=int, metavar="N", help="how many ended jobs the head remembers")
    parser.add_argument("--window", type=float, metavar="SECONDS", help="how long following is watched")
    parser.add_argument("--repeats", type=int, metavar="N", help="how often each short job is run")
    arguments = begin(parser, argv)
    size = _size(arguments)
    providers, missing = available(arguments.providers)
    for provider in providers:
        print(f"{provider.name}: {provider.versions()}")
    print(*missing, "", sep="\n", flush=True)
    measured = Figures()
    with ray_head(size.finished) as proxy:
        _measure(measured, providers, arguments.parts, size, proxy)
    show("jobs", measured.tables(size))


def _size(arguments: argparse.Namespace) -> Size:
    base = QUICK if arguments.quick else FULL
    return Size(
        base.job_seconds,
        arguments.repeats or base.repeats,
        base.rates,
        sorted(set(arguments.jobs or base.jobs)),
        arguments.window or base.window,
        base.settle,
        base.finished if arguments.finished is None else arguments.finished,
    )


def _measure(
    measured: Figures, providers: Sequence[Provider], parts: Sequence[str], size: Size, proxy: CountingProxy
) -> None:
    if "latency" in parts:
        with _timed("ray job submit"):
            measured.latencies += by_hand(proxy.address, size.job_seconds, size.repeats)
    if {"latency", "lines"} & set(parts):
        for provider in providers:
            with _continuing(provider), running_airflow(provider, proxy, ()) as environment:
                _measure_alone(measured, environment, parts, size)
    if "follow" in parts:  # afterwards, because the head has work with each job that waits
        with _timed("jobs that wait"):
            submit_waiting(proxy.target, max(size.jobs))
        for provider in providers:
            jobs = sizes_for(provider.defers, size.jobs)
            what = f"{provider.name}: following"
            with _continuing(provider), running_airflow(provider, proxy, jobs) as environment, _timed(what):
                _collect(measured.followed, costs_of(environment, jobs, size.window, size.settle))


def _measure_alone(measured: Figures, environment: JobsEnvironment, parts: Sequence[str], size: Size) -> None:
    name = environment.provider.name
    if "latency" in parts:
        with _timed(f"{name}: latency"):
            _collect(measured.latencies, latencies_of(environment, size.job_seconds, size.repeats))
    if "lines" in parts:
        with _timed(f"{name}: lines"):
            _collect(measured.lines, lines_of(environment, size.rates))


@contextmanager
def _continuing(provider: Provider) -> Iterator[None]:
    """Report an error of one provider, so that the others, and its figures until then, still count."""
    try:
        yield
    except Exception as error:
        print(f"{provider.name} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def _collect(target: list[Figure], figures: Iterable[Figure]) -> None:
    """Add each figure and print it to stderr at once: the tables are printed only at the end."""
    for figure in figures:
        target.append(figure)
        print(f"    {figure}", file=sys.stderr, flush=True)


@contextmanager
def _timed(what: str) -> Iterator[None]:
    """Print to stderr how long ``what`` took."""
    started = time.monotonic()
    yield
    print(f"... {what}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
