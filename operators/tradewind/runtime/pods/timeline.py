"""Timeline of a pod: its events as one JSON file beside the attempt. Errors in writing it never fail the run.

``note`` returns at once: a thread writes the whole file, and retries during an outage of the store. ``summary``
computes waiting time, restarts and lost steps.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from tradewind.records.parsing import (
    COUNT,
    MOMENT,
    NUMBER,
    RAW_TEXT,
    TEXT,
    RecordFormatError,
    list_of,
    parse,
    parse_fields,
)
from tradewind.storage.bounded_read import value_count
from tradewind.storage.errors import BadRecordError
from tradewind.storage.files import read_contents, write_text

TIMELINE_FILE: Final = "timeline.json"
_RETRY_S: Final = 5.0
_MAX_RETRY_S: Final = 60.0
MAX_TIMELINE_BYTES: Final = 8 << 20
"""Maximum size of a timeline's file."""
MAX_EVENTS: Final = 40_000
"""As many as fill such a file when a pod writes them. A file of shorter events could hold ten times as many, which a
task or a page would take seconds to read."""
_MAX_VALUES: Final = 20 * MAX_EVENTS
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
    "sizes": list_of(COUNT).or_null(),
    "hosts": list_of(TEXT).or_null(),
    "host": COUNT.or_null(),
    "reserve_s": NUMBER.or_null(),
    "detect_s": NUMBER.or_null(),
    "end_s": NUMBER.or_null(),
}
"""Fields of a row of the file."""
_ENDS: Final = ("preempted", "failed", "ended", "done", "scaled")
_KEYS: Final = {"name": "event", "slice_name": "slice", "grows_to": "to"}
"""Field of an event -> its key in the file, where they differ."""
_FIELDS: Final = {key: name for name, key in _KEYS.items()}


@dataclass(frozen=True)
class TimelineEvent:
    """One event of a pod; which fields it has depends on its name.

    Attributes:
        name: One of ``waiting``, ``reserved``, ``started``, ``first_step``, ``preempted``, ``failed``,
            ``scaled``, ``ended`` or ``done``.
        at: When, in seconds since the epoch.
        cause: Of an end, a value of ``verdicts.Cause``.
        sentence: Of an end, for users.
        slice_name: The slice of the host that ended the attempt.
        host: The rank of that host within its slice.
        slices: The slices that were reserved or started on.
        hosts: The addresses of the hosts that were started on.
        group: The kind of group that the pod waits for.
        sizes: The largest and the smallest number of slices.
        num_slices: The present number of slices.
        grows_to: The next number of slices.
        restarts: How often the processes had been started before.
        step: The newest finished step.
        checkpoint_step: The newest saved step.
    """

    name: str
    at: float
    cause: str | None = None
    sentence: str | None = None
    slice_name: str | None = None
    host: int | None = None
    slices: tuple[str | None, ...] | None = None
    hosts: tuple[str, ...] | None = None
    group: str | None = None
    sizes: tuple[int, ...] | None = None
    num_slices: int | None = None
    grows_to: int | None = None
    restarts: int | None = None
    reserve_s: float | None = None
    start_s: float | None = None
    detect_s: float | None = None
    end_s: float | None = None
    step: float | None = None
    checkpoint_step: float | None = None

    @staticmethod
    def from_row(row: Any) -> TimelineEvent:
        """Return the event of a row of the file; ignore unknown keys, which a later version may write.

        Raises:
            RecordFormatError: The row is no event.
        """
        known = parse_fields(row, _KINDS, ("event", "at"), whose="an event's")
        values: dict[str, Any] = {
            _FIELDS.get(key, key): tuple(value) if isinstance(value, list) else value for key, value in known.items()
        }
        return TimelineEvent(**values)

    def to_row(self) -> dict[str, Any]:
        """Return its row of the file, without empty fields."""
        return {_KEYS.get(name, name): value for name, value in vars(self).items() if value is not None}

    @property
    def lost_steps(self) -> int:
        """How many steps an end has lost. A pod that is done, or that grows, has saved its last step."""
        if self.name in ("done", "scaled"):
            return 0
        return int(max(0, (self.step or 0) - (self.checkpoint_step or 0)))


class Timeline:
    """The events of one pod; without a path they stay in memory."""

    def __init__(self, path: str | None, *, retry_s: float = _RETRY_S) -> None:
        self._path = path
        self._retry_s = retry_s
        self._events: list[TimelineEvent] = []
        self._changed = threading.Condition()
        self._written = 0
        self._writer: threading.Thread | None = None

    @property
    def events(self) -> list[TimelineEvent]:
        """All events so far."""
        with self._changed:
            return list(self._events)

    def note(self, event: TimelineEvent) -> None:
        """Add ``event``; a thread writes it soon."""
        with self._changed:
            self._events.append(event)
            if self._path is not None and self._writer is None:
                self._writer = threading.Thread(target=self._write, daemon=True, name="timeline")
                self._writer.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until all events are written, for at most ``timeout_s``; return whether they are."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._path is None or self._written == len(self._events), timeout=timeout_s
            )

    def _write(self) -> None:
        assert self._path is not None
        pause = self._retry_s
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._written < len(self._events))
                events = list(self._events)
            try:
                write_text(self._path, timeline_text(events))
            except Exception as problem:  # no error of the store may fail the run
                print(f"tradewind: cannot write the timeline: {problem}. Retrying in {pause:.0f} s.", flush=True)
                time.sleep(pause)
                pause = min(2 * pause, _MAX_RETRY_S)
                continue
            pause = self._retry_s
            with self._changed:
                self._written = len(events)
                self._changed.notify_all()


class BadTimelineError(BadRecordError):
    """A timeline's file is invalid, so the events of the pod are unknown."""


def read_timeline(path: str, max_bytes: int = MAX_TIMELINE_BYTES) -> list[TimelineEvent]:
    """Return the events in the file at ``path``; none when it does not exist.

    Raises:
        BadTimelineError: The file is no timeline.
    """
    content = read_contents([path], max_bytes).get(path)
    if content is None:
        return []
    try:
        if content.flaw is not None:
            raise RecordFormatError(content.flaw)
        return parse_timeline(content.text)
    except RecordFormatError as error:
        raise BadTimelineError(path, str(error)) from None


def parse_timeline(text: str) -> list[TimelineEvent]:
    """Return the events in the text of a timeline's file.

    Raises:
        RecordFormatError: The text is no timeline.
    """
    if value_count(text) > _MAX_VALUES:
        raise RecordFormatError(f"it holds more than {_MAX_VALUES:,} values")
    rows = parse(text)
    if not isinstance(rows, list):
        raise RecordFormatError("it holds no list of events")
    if len(rows) > MAX_EVENTS:
        raise RecordFormatError(f"it holds more than {MAX_EVENTS:,} events")
    return [TimelineEvent.from_row(row) for row in rows]


def timeline_text(events: Iterable[TimelineEvent]) -> str:
    """Return the text of a timeline's file."""
    return json.dumps([event.to_row() for event in events], indent=1, default=str)


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
    """The first start of the processes, from which wall time and goodput count."""
    wall_s: float
    waiting_s: float
    """Without a slice, also before the first start."""
    restarts: int
    preemptions: int
    failures: int
    lost_steps: int
    """Finished steps that were not saved."""
    segments: tuple[Segment, ...]


def summary(events: Iterable[TimelineEvent], now: float | None = None) -> Summary:
    """Summarize the events of one attempt or of several in a row; a running segment counts until ``now``."""
    ordered = sorted(events, key=lambda event: event.at)
    last = max([event.at for event in ordered] + ([] if now is None else [now]), default=0.0)
    segments = _segments(ordered)
    names = [event.name for event in ordered]
    return Summary(
        started_at=segments[0].started_at if segments else None,
        wall_s=last - segments[0].started_at if segments else 0.0,
        waiting_s=sum(end - start for start, end in waits(ordered, last)),
        restarts=max(0, len(segments) - 1),
        preemptions=names.count("preempted"),
        failures=names.count("failed"),
        lost_steps=sum(segment.lost_steps for segment in segments),
        segments=tuple(segments),
    )


def _segments(events: Iterable[TimelineEvent]) -> list[Segment]:
    segments: list[Segment] = []
    for event in events:
        name, at = event.name, event.at
        if name == "started":
            segments.append(Segment(at, num_slices=event.num_slices))
        elif not segments or segments[-1].ended_at is not None:
            continue
        elif name == "first_step":
            segments[-1] = replace(segments[-1], first_step_at=at)
        elif name in _ENDS:
            segments[-1] = replace(segments[-1], ended_at=at, end=name, cause=event.cause, lost_steps=event.lost_steps)
    return segments


def waits(events: Iterable[TimelineEvent], last: float) -> Iterator[tuple[float, float]]:
    """Yield start and end of each time without a slice, of events in order; one that lasts ends at ``last``."""
    since = None
    for event in events:
        if event.name == "waiting" and since is None:
            since = event.at
        elif event.name in ("reserved", "started", "done") and since is not None:
            yield since, event.at
            since = None
    if since is not None:
        yield since, last
