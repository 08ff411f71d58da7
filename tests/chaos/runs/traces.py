"""Traces of steps: while a step's function runs, it appends timestamped lines to a local file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Execution:
    """One execution of a step's function, from its first line to its last, in boot clock seconds."""

    word: str
    pid: int
    first: float
    last: float


def executions_in(trace: Path) -> list[Execution]:
    """Return the executions in one trace, by start time."""
    found: dict[str, Execution] = {}
    for text in trace.read_text().splitlines():
        line = json.loads(text)
        before = found.get(line["word"])
        first = line["at"] if before is None else before.first
        found[line["word"]] = Execution(line["word"], line["pid"], first, line["at"])
    return sorted(found.values(), key=lambda execution: execution.first)


def all_executions(traces: Path) -> dict[str, list[Execution]]:
    """Return version → its executions."""
    return {trace.name: executions_in(trace) for trace in sorted(traces.iterdir())}


def overlaps(executions: list[Execution]) -> list[str]:
    """Return a sentence for each execution that began before an earlier one of its version had ended."""
    sentences: list[str] = []
    latest = executions[0]
    for later in executions[1:]:
        if later.first <= latest.last:
            sentences.append(
                f"process {later.pid} began {latest.last - later.first:.2f} s before {latest.pid} had ended"
            )
        latest = max(latest, later, key=lambda execution: execution.last)
    return sentences
