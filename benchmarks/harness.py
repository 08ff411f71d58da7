"""Shared parts of the benchmarks: arguments, the line about the machine, parts, medians, goals, and waiting.

A part measures and yields tables and goals. A table is printed as soon as it is there, the goals together at the end.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from benchmarks.report import Table, seconds

ROOT = Path(__file__).parents[1]
WAIT_S = 300.0


@dataclass(frozen=True)
class Goal:
    """Limit of a figure, and the figure. Nothing fails when a goal is missed."""

    what: str
    wanted: str
    here: str
    is_reached: bool


Part = Callable[[bool], Iterator[Table | Goal]]
"""Takes whether it must be quick."""


def at_most(what: str, here: float, limit: float, said: Callable[[float], str] = seconds) -> Goal:
    """Return the goal of a figure with an upper limit."""
    return Goal(what, f"<= {said(limit)}", said(here), here <= limit)


def bench(name: str, about: str | None, parts: Mapping[str, Part], argv: Sequence[str] | None = None) -> None:
    """Measure the parts that are named, or all of them."""
    arguments = begin(arguments_of(name, about, parts), argv)
    show(name, chain.from_iterable(parts[part](arguments.quick) for part in arguments.parts))


def arguments_of(name: str, about: str | None, parts: Iterable[str]) -> argparse.ArgumentParser:
    """Return the parser of every benchmark; parts are given with ``--parts`` or without."""
    parser = argparse.ArgumentParser(prog=f"benchmark {name}", description=about)
    parser.add_argument("named", nargs="*", metavar="PART", help=f"of {', '.join(parts)}; all, if none is given")
    parser.add_argument("--parts", nargs="+", metavar="PART", default=[], help="the same")
    parser.add_argument("--quick", action="store_true", help="small sizes, once each: shows that it works")
    parser.set_defaults(known=tuple(parts))
    return parser


def begin(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse, say what the figures are measured on, and let a SIGTERM stop what will be started."""
    arguments = parser.parse_args(argv)
    named = [*arguments.named, *arguments.parts]
    if unknown := sorted(set(named) - set(arguments.known)):
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(arguments.known)}.")
    arguments.parts = [part for part in arguments.known if part in named or not named]
    load = os.getloadavg()[0]
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load at start {load:.1f}\n", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    return arguments


def show(name: str, found: Iterable[Table | Goal]) -> None:
    """Print the tables, and below them a table of the goals."""
    goals = Table(f"{name}: goals", ("of ours", "goal", "here", "reached"))
    for one in found:
        if isinstance(one, Table):
            print(one.text(), flush=True)
        else:
            goals.add(one.what, one.wanted, one.here, "yes" if one.is_reached else "no")
    if goals.rows:
        print(goals.text(), flush=True)


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def until(condition: Callable[[], object], why_not: Callable[[], str], wait_s: float = WAIT_S) -> None:
    """Wait for ``condition``; ``why_not`` describes a timeout."""
    deadline = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"timed out after {wait_s:g} s; {why_not()}")
        time.sleep(0.5)
