"""What became of one killed slice, in seconds, from the marks of the function and the timeline of our runner."""

from __future__ import annotations

import json
import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tradewind.runtime.pods.timeline import TimelineEvent

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
        lost_s: How long those had taken.
        interval_s: The longest time between two checkpoints before the kill.
    """

    runner: str
    total: float
    load: float
    compile: float
    lost: int
    lost_s: float
    interval_s: float
    detect: float | None = None
    end: float | None = None
    reserve: float | None = None
    start: float | None = None


def read_marks(folder: Path) -> list[Mark]:
    """The marks of all hosts, in order of time."""
    lines = [line for file in folder.glob("marks-*.jsonl") for line in file.read_text().splitlines()]
    return sorted(map(json.loads, filter(_is_whole, lines)), key=lambda mark: mark["at"])


def recovery_of(
    runner: str, killed: float, marks: Sequence[Mark], events: Sequence[TimelineEvent] = ()
) -> Recovery | None:
    """The recovery from the kill at ``killed``; None before there is a step of another process on every host."""
    old = {mark["pid"] for mark in marks if mark["at"] <= killed}
    new = [mark for mark in marks if mark["pid"] not in old]
    pids = {mark["pid"] for mark in new}
    firsts = [next((mark for mark in new if mark["pid"] == pid and mark["event"] == "step"), None) for pid in pids]
    if len(pids) < 2 or None in firsts:
        return None
    first_step = max(mark["at"] for mark in firsts if mark)
    begun, loaded = (max(mark["at"] for mark in new if mark["event"] == event) for event in ("begun", "loaded"))
    again = [_done_again(marks, old, first) for first in firsts if first]
    saved = [mark for mark in marks if mark["pid"] in old and mark["event"] == "saved"]
    parts = _parts(killed, begun, events)
    return Recovery(
        runner,
        first_step - killed,
        load=loaded - begun,
        compile=first_step - loaded,
        lost=max(map(len, again)),
        lost_s=max(times[-1] - times[0] if times else 0.0 for times in again),
        interval_s=max((gap for pid in old for gap in _gaps(saved, pid)), default=0.0),
        **parts,
    )


def _done_again(marks: Sequence[Mark], old: Container[int], first: Mark) -> list[float]:
    """When the host whose new process began with ``first`` did what that one did again."""
    mine = [mark for mark in marks if mark["rank"] == first["rank"] and mark["pid"] in old and mark["event"] == "step"]
    return [mark["at"] for mark in mine if mark["step"] >= first["step"]]


def _gaps(marks: Sequence[Mark], pid: int) -> list[float]:
    """The times between the marks of one process."""
    times = [mark["at"] for mark in marks if mark["pid"] == pid]
    return [after - before for before, after in pairwise(times)]


def _parts(killed: float, begun: float, events: Sequence[TimelineEvent]) -> dict[str, float]:
    """What happened before the function began, by our runner's timeline."""
    later = [event for event in events if event.at > killed]
    noted = next((event for event in later if event.name in ("preempted", "failed")), None)
    reserved = next((event for event in later if event.name == "reserved"), None)
    if noted is None or reserved is None:
        return {}
    ended = noted.at
    known = ended - (noted.end_s or 0.0)
    ready = max(ended, reserved.at)
    return {"detect": known - killed, "end": ended - known, "reserve": ready - ended, "start": begun - ready}


def median_step(marks: Sequence[Mark], since: float, until: float) -> float:
    """How long a step took in these seconds since the epoch, over all processes."""
    steps = [mark for mark in marks if mark["event"] == "step" and since <= mark["at"] <= until]
    return statistics.median(gap for pid in {mark["pid"] for mark in steps} for gap in _gaps(steps, pid))


def _is_whole(line: str) -> bool:
    return line.startswith("{") and line.endswith("}")
