"""What happened to a pod, in order, as one JSON file beside the attempt; writing it can never fail the run.

``note`` returns at once: a thread writes the whole file, and while the store is down it keeps what there is and tries
again. What counts as what is in ``summary``.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tradewind.records.errors import BadRecordError
from tradewind.records.parsing import (
    COUNT,
    MOMENT,
    NUMBER,
    RAW_TEXT,
    TEXT,
    Flaw,
    known_fields,
    list_of,
    parse,
)
from tradewind.records.store import read_contents, write_text

TIMELINE_FILE: Final = "timeline.json"
_RETRY_SECONDS: Final = 5.0
_LONGEST_RETRY_SECONDS: Final = 60.0
MOST_BYTES: Final = 8 << 20
"""Of a timeline's file: some twenty thousand events."""
_KINDS: Final = {
    "event": TEXT,
    "at": MOMENT,
    "cause": TEXT.or_null(),
    "sentence": RAW_TEXT.or_null(),
    "slice": TEXT.or_null(),
    "slices": list_of(TEXT.or_null()).or_null(),
    "group": TEXT.or_null(),
    "num_slices": COUNT.or_null(),
    "to": COUNT.or_null(),
    "restarts": COUNT.or_null(),
    "start_s": NUMBER.or_null(),
    "step": NUMBER.or_null(),
    "checkpoint_step": NUMBER.or_null(),
}
"""What those that read events may rely on."""
_ENDS: Final = ("preempted", "failed", "ended", "done", "scaled")


class Timeline:
    """The events of one pod; without a path they are kept in memory only."""

    def __init__(
        self, path: str | None, clock: Callable[[], float] = time.time, *, retry_s: float = _RETRY_SECONDS
    ) -> None:
        self._path = path
        self._clock = clock
        self._retry_s = retry_s
        self._events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._written = 0
        self._writer: threading.Thread | None = None

    @property
    def events(self) -> list[dict[str, Any]]:
        """A copy of all events so far."""
        with self._changed:
            return [dict(one) for one in self._events]

    def note(self, event: str, **fields: Any) -> None:
        """``event`` happens now; ``fields`` are plain values."""
        with self._changed:
            self._events.append({"event": event, "at": self._clock(), **fields})
            if self._path is not None and self._writer is None:
                self._writer = threading.Thread(target=self._write, daemon=True, name="timeline")
                self._writer.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until everything is written, but not for longer than this; whether it is."""
        with self._changed:
            return self._changed.wait_for(self._is_written, timeout=timeout_s)

    def _is_written(self) -> bool:
        return self._path is None or self._written == len(self._events)

    def _write(self) -> None:
        assert self._path is not None
        pause = self._retry_s
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._written < len(self._events))
                count, text = len(self._events), json.dumps(self._events, indent=1, default=str)
            try:
                write_text(self._path, text)
            except Exception as problem:  # whatever is wrong with the store, the run goes on
                print(f"tradewind: the timeline cannot be written now: {problem}", flush=True)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_RETRY_SECONDS)
                continue
            pause = self._retry_s
            with self._changed:
                self._written = count
                self._changed.notify_all()


class BadTimelineError(BadRecordError):
    """What should be a timeline cannot be read as one; what happened to the pod cannot be told."""


def read_timeline(path: str) -> list[dict[str, Any]]:
    """The events in the file at ``path``; none when it does not exist.

    Raises:
        BadTimelineError: What is there is no timeline.
    """
    found = read_contents([path], MOST_BYTES).get(path)
    if found is None:
        return []
    try:
        if found.flaw is not None:
            raise Flaw(found.flaw)
        return _parsed(found.text)
    except Flaw as flaw:
        raise BadTimelineError(path, str(flaw)) from None


def _parsed(text: str) -> list[dict[str, Any]]:
    events = parse(text)
    if not isinstance(events, list):
        raise Flaw("it holds no list of events")
    for event in events:
        known_fields(event, _KINDS, ("event", "at"), whose="an event's")
    return events


@dataclass(frozen=True)
class Segment:
    """One start of all processes, until they ended."""

    started_at: float
    ended_at: float | None = None
    """None while it runs."""
    end: str | None = None
    """``preempted``, ``failed``, ``ended``, ``scaled`` or ``done``."""
    cause: str | None = None
    first_step_at: float | None = None
    num_slices: int | None = None
    lost_steps: int = 0


@dataclass(frozen=True)
class Summary:
    """A timeline in numbers."""

    started_at: float | None
    """The first start of the processes; wall time and goodput count from here."""
    wall_s: float
    waiting_s: float
    """Without a slice, also before the first start."""
    restarts: int
    preemptions: int
    failures: int
    lost_steps: int
    """Steps that were done and not saved."""
    segments: tuple[Segment, ...]


def summary(events: Iterable[Mapping[str, Any]], now: float | None = None) -> Summary:
    """The events, of one attempt or of several in a row, in numbers. What still runs counts until ``now``."""
    ordered = sorted(events, key=lambda one: float(one["at"]))
    last = max([float(one["at"]) for one in ordered] + ([] if now is None else [now]), default=0.0)
    segments = _segments(ordered)
    names = [one["event"] for one in ordered]
    return Summary(
        started_at=segments[0].started_at if segments else None,
        wall_s=last - segments[0].started_at if segments else 0.0,
        waiting_s=_waiting(ordered, last),
        restarts=max(0, len(segments) - 1),
        preemptions=names.count("preempted"),
        failures=names.count("failed"),
        lost_steps=sum(one.lost_steps for one in segments),
        segments=tuple(segments),
    )


def _segments(events: Iterable[Mapping[str, Any]]) -> list[Segment]:
    found: list[Segment] = []
    for one in events:
        name, at = one["event"], float(one["at"])
        if name == "started":
            found.append(Segment(at, num_slices=one.get("num_slices")))
        elif not found or found[-1].ended_at is not None:
            continue
        elif name == "first_step":
            found[-1] = replace(found[-1], first_step_at=at)
        elif name in _ENDS:
            found[-1] = replace(found[-1], ended_at=at, end=name, cause=one.get("cause"), lost_steps=_lost(one))
    return found


def _lost(event: Mapping[str, Any]) -> int:
    """A pod that is done, or that grows, has saved its last step."""
    if event["event"] in ("done", "scaled"):
        return 0
    return max(0, (event.get("step") or 0) - (event.get("checkpoint_step") or 0))


def _waiting(events: Iterable[Mapping[str, Any]], last: float) -> float:
    total, since = 0.0, None
    for one in events:
        if one["event"] == "waiting" and since is None:
            since = float(one["at"])
        elif one["event"] in ("reserved", "started", "done") and since is not None:
            total, since = total + float(one["at"]) - since, None
    return total if since is None else total + last - since
