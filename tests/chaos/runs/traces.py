"""Traces of steps: while a step's function runs, it appends timestamped lines to a local file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Life:
    """One execution of a step's function, from its first line to its last, in boot clock seconds."""

    word: str
    pid: int
    first: float
    last: float


def lives(trace: Path) -> list[Life]:
    """Return the executions in one trace, by start time."""
    found: dict[str, Life] = {}
    for text in trace.read_text().splitlines():
        line = json.loads(text)
        before = found.get(line["word"])
        first = line["at"] if before is None else before.first
        found[line["word"]] = Life(line["word"], line["pid"], first, line["at"])
    return sorted(found.values(), key=lambda life: life.first)


def all_lives(traces: Path) -> dict[str, list[Life]]:
    """Return version → its executions."""
    return {trace.name: lives(trace) for trace in sorted(traces.iterdir())}


def overlaps(found: list[Life]) -> list[str]:
    """Return a sentence for each execution that began before an earlier one of its version had ended."""
    latest: Life | None = None
    told: list[str] = []
    for life in found:
        if latest is not None and life.first <= latest.last:
            told.append(f"process {life.pid} began {latest.last - life.first:.2f} s before {latest.pid} had ended")
        if latest is None or life.last > latest.last:
            latest = life
    return told
