"""What became of one killed slice, in seconds, from the marks of the function and the timeline of our runner."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Mark = Mapping[str, Any]


@dataclass(frozen=True)
class Recovery:
    """From the SIGKILL of a slice to the first new step on another one, in seconds.

    Attributes:
        runner: Ours or the peer.
        total: All of it.
        detect: Until the runner knew.
        end: Ending what was left, beside which the next slice is reserved.
        reserve: Beyond that, until there was one.
        start: Until the function began in fresh processes, or in those that were waiting.
        load: Imports, and reading the checkpoint.
        compile: Until the end of the first step.
        lost: Steps that were done again.
    """

    runner: str
    total: float
    load: float
    compile: float
    lost: int
    detect: float | None = None
    end: float | None = None
    reserve: float | None = None
    start: float | None = None


def read_marks(folder: Path) -> list[Mark]:
    """The marks of all hosts, in order of time."""
    lines = [line for file in folder.glob("marks-*.jsonl") for line in file.read_text().splitlines()]
    return sorted(map(json.loads, filter(_is_whole, lines)), key=lambda mark: mark["at"])


def recovery_of(runner: str, killed: float, marks: Sequence[Mark], events: Sequence[Mark] = ()) -> Recovery | None:
    """The recovery from the kill at ``killed``; None before there is a step of another process on every host."""
    old = {mark["pid"] for mark in marks if mark["at"] <= killed}
    new = [mark for mark in marks if mark["pid"] not in old]
    pids = {mark["pid"] for mark in new}
    firsts = [next((mark for mark in new if mark["pid"] == pid and mark["event"] == "step"), None) for pid in pids]
    if len(pids) < 2 or None in firsts:
        return None
    first_step = max(mark["at"] for mark in firsts if mark)
    begun, loaded = (max(mark["at"] for mark in new if mark["event"] == event) for event in ("begun", "loaded"))
    reached = max(mark["step"] for mark in marks if mark["pid"] in old and mark["step"] is not None)
    resumed = min(mark["step"] for mark in firsts if mark)
    parts = _parts(killed, begun, events)
    return Recovery(
        runner,
        first_step - killed,
        load=loaded - begun,
        compile=first_step - loaded,
        lost=max(0, reached + 1 - resumed),
        **parts,
    )


def _parts(killed: float, begun: float, events: Sequence[Mark]) -> dict[str, float]:
    """What happened before the function began, by our runner's timeline."""
    later = [event for event in events if event["at"] > killed]
    noted = next((event for event in later if event["event"] in ("preempted", "failed")), None)
    reserved = next((event for event in later if event["event"] == "reserved"), None)
    if noted is None or reserved is None:
        return {}
    ended = noted["at"]
    known = ended - noted["end_s"]
    ready = max(ended, reserved["at"])
    return {"detect": known - killed, "end": ended - known, "reserve": ready - ended, "start": begun - ready}


def step_seconds(marks: Sequence[Mark], skip: int) -> list[float]:
    """How long each step took in each process, without the first ones."""
    found: list[float] = []
    for pid in {mark["pid"] for mark in marks}:
        times = [mark["at"] for mark in marks if mark["pid"] == pid and mark["event"] == "step"]
        found += [after - before for before, after in zip(times[skip:], times[skip + 1 :], strict=False)]
    return found


def _is_whole(line: str) -> bool:
    return line.startswith("{") and line.endswith("}")
