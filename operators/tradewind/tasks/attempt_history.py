"""Attempts at an output as intervals and events on a time axis: where their time went, why each ended, what it cost.

The intervals come from the attempts' files and the timelines of their pods, the saves from the metadata of checkpoints,
and the goodput from the metrics. All of them are input that another process wrote, so each is read within a bound; a
file that cannot be read is named, and the other attempts are shown.
"""

from __future__ import annotations

import datetime
import math
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from tradewind.cloud_tpu.goodput import METRICS_FILE, CountedSteps, first_start, goodput, metrics_rows
from tradewind.plans.estimates import describe_spec_resources
from tradewind.records.attempts import (
    Attempt,
    AttemptOutcome,
    BadAttemptError,
    attempt_folder,
    attempt_numbers,
    attempt_path,
    parse_attempt,
)
from tradewind.records.parsing import COUNT, TEXT, RecordFormatError, parse_fields, parse_object
from tradewind.records.producers import TaskOfRun, task_of
from tradewind.records.record import Record, RecordState
from tradewind.runtime.pods.timeline import (
    TIMELINE_FILE,
    BadTimelineError,
    TimelineEvent,
    read_timeline,
    summary,
    waits,
)
from tradewind.storage.bounded_read import SMALL, Content, value_count
from tradewind.storage.files import list_names, read_contents
from tradewind.text import format_producer

MAX_ATTEMPTS: Final = 20
"""The newest are read."""
MAX_POINTS: Final = 400
"""Intervals and events of an attempt, each; the newest are kept."""
MAX_TEXT: Final = 2_000
MAX_TRACE: Final = 20_000
"""Characters of a text and of a traceback; any writer to the bucket controls them."""
_MAX_REASON: Final = 500
"""Characters of the reason of an event: there are up to 8,000."""
_MAX_ATTEMPT_BYTES: Final = 4 << 20
"""Of all attempts' files."""
_MAX_BYTES: Final = 1 << 20
"""Of an attempt's file."""
_MAX_VALUES: Final = 50_000
"""Values in an attempt's file."""
_MAX_TIMELINE_BYTES: Final = 4 << 20
"""Of a timeline: 20,000 events as a pod writes them."""
_READ_TOGETHER: Final = 4
"""Attempts' files in memory together."""
_MAX_METRICS_BYTES: Final = 16 << 20
"""Of a larger file the goodput is unknown."""
_MAX_EVENTS: Final = 20_000
"""Events of all timelines together, after which no older one is read; one that cannot be read counts as a quarter."""
_NOT_READ: Final = "The timeline of its pod is not read: those of the newer attempts are very long."
_MAX_CHECKPOINTS: Final = 50
_CHECKPOINTS: Final = "checkpoints"
_CHECKPOINT_METADATA: Final = "metadata.json"
_ENDS: Final = ("preempted", "failed", "ended", "scaled", "done")


class PhaseKind(StrEnum):
    """What an attempt does in an interval.

    Values:
        WAITING: It has no slice or hosts yet, or its job has not started.
        RESERVED: It has slices, and its processes start.
        STARTING: Its processes run, but have made no step: they import, compile and load.
        RUNNING: It makes steps; a step without a pod runs from its claim to its end.
        COMMITTING: Its processes are done, and its output becomes a result.
    """

    WAITING = "waiting"
    RESERVED = "reserved"
    STARTING = "starting"
    RUNNING = "running"
    COMMITTING = "committing"


class EventKind(StrEnum):
    """What happened to an attempt at one moment."""

    PREEMPTED = "preempted"
    FAILED = "failed"
    SCALED = "scaled"
    RESTARTED = "restarted"
    SAVED = "saved"
    COMMITTED = "committed"
    STOPPED = "stopped"
    LOST = "lost"


@dataclass(frozen=True)
class AttemptPhase:
    """One interval.

    Attributes:
        started_at, ended_at: In seconds since 1970; ``ended_at`` is None while it lasts.
        slices: Names of the slices, where they are known.
        num_slices: How many slices or groups of hosts.
    """

    kind: PhaseKind
    started_at: float
    ended_at: float | None = None
    slices: tuple[str, ...] = ()
    num_slices: int | None = None


@dataclass(frozen=True)
class AttemptEvent:
    """One event.

    Attributes:
        at: In seconds since 1970.
        cause: Category of an end, a value of ``verdicts.Cause``.
        reason: Sentence for users.
        step: The newest finished step then, or the step that was saved.
        lost_steps: Finished steps that were not saved, so they are made again.
        down_s: Seconds from an end until the next step; None if there was none.
    """

    kind: EventKind
    at: float
    cause: str | None = None
    reason: str | None = None
    step: int | None = None
    lost_steps: int = 0
    down_s: float | None = None


@dataclass(frozen=True)
class AttemptCost:
    """What an attempt cost.

    Attributes:
        wall_s: Seconds from its claim to its end, or until now.
        waiting_s: Seconds in which its pod waited for slices, as in the task's log.
        down_s: Other seconds from the ends of its processes to their next steps.
        lost_steps: Finished steps that were made again.
        slice_hours: Hours, each of one slice, that its pod held; None without a pod.
        resources: Its resources in words; None if the file does not say.
    """

    wall_s: float
    waiting_s: float = 0.0
    down_s: float = 0.0
    lost_steps: int = 0
    slice_hours: float | None = None
    resources: str | None = None


@dataclass(frozen=True)
class AttemptReport:
    """One attempt.

    Attributes:
        producer: The run or script that claimed it.
        made_by: The task that claimed it; None outside Airflow.
        started_at: Its claim, in seconds since 1970; None if its file does not say.
        outcome: How it ended; None while it runs, or if no process recorded its end.
        reason: Why it ended.
        problem: Which of its files cannot be read, and why.
        traceback: Of its error.
        left_out: How many of its oldest intervals and events are not listed.
        goodput: Share of the time since the training's first start that was spent in steps that count, as of this
            attempt's end; only of the newest attempt.
        logs: Folder of its logs.
    """

    number: int
    logs: str
    job: str = ""
    cluster: str = ""
    producer: str = ""
    made_by: TaskOfRun | None = None
    commit: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    is_active: bool = False
    outcome: AttemptOutcome | None = None
    reason: str | None = None
    problem: str | None = None
    traceback: str | None = None
    phases: tuple[AttemptPhase, ...] = ()
    events: tuple[AttemptEvent, ...] = ()
    left_out: int = 0
    preemptions: int = 0
    failures: int = 0
    restarts: int = 0
    cost: AttemptCost | None = None
    goodput: float | None = None


@dataclass(frozen=True)
class AttemptHistory:
    """The attempts at one output, the newest first.

    Attributes:
        left_out: How many older ones are not listed.
        now: When it was read, by this machine's clock.
    """

    attempts: tuple[AttemptReport, ...]
    left_out: int
    now: float


def read_attempt_history(output_path: str, record: Record, now: float) -> AttemptHistory:
    """Read the newest attempts at an output; ``record`` says whether the newest runs.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    numbers = attempt_numbers(output_path)
    shown = numbers[::-1][:MAX_ATTEMPTS]
    active = record.lease.attempt if record.state is RecordState.AT_WORK and record.lease is not None else None
    reports: list[AttemptReport] = []
    events_left, bytes_left = _MAX_EVENTS, _MAX_ATTEMPT_BYTES
    for start in range(0, len(shown), _READ_TOGETHER):
        files = {attempt_path(output_path, number): number for number in shown[start : start + _READ_TOGETHER]}
        contents = read_contents(list(files), min(bytes_left, _MAX_BYTES))
        bytes_left = max(bytes_left - sum(len(each.text) for each in contents.values()), 0)
        for file, number in files.items():
            found = _read_attempt(output_path, number, file, contents.get(file))
            if isinstance(found, Attempt):
                events, problem = _read_events(output_path, number) if events_left > 0 else ([], _NOT_READ)
                events_left -= _MAX_EVENTS // 4 if problem else len(events)
                found = report_attempt(found, events, output_path, is_active=number == active, now=now)
                found = found if problem is None else replace(found, problem=_cut(problem))
            reports.append(found)
    if reports:
        reports[0] = _with_goodput(output_path, reports[0], now)
        reports = _with_saves(reports, read_saves(output_path))
    return AttemptHistory(tuple(map(_bounded, reports)), len(numbers) - len(shown), now)


def report_attempt(
    attempt: Attempt, events: Sequence[TimelineEvent], output_path: str, *, is_active: bool, now: float
) -> AttemptReport:
    """Return the report of an attempt whose pod, if it has one, left these ``events``."""
    ordered = sorted(events, key=lambda event: event.at)
    started_at, ended_at = _seconds(attempt.started_at), _seconds(attempt.ended_at)
    last = ordered[-1].at if ordered else None
    until = now if is_active else next((at for at in (ended_at, last, started_at) if at is not None), None)
    pod = summary(ordered, until)
    phases = tuple(attempt_phases(ordered, started_at, until, is_active=is_active))
    marks = (*attempt_events(ordered), *_end(attempt, ended_at))
    begin = started_at if started_at is not None else (ordered[0].at if ordered else until)
    error = attempt.error
    return AttemptReport(
        number=attempt.number,
        logs=attempt_folder(output_path, attempt.number),
        job=attempt.job,
        cluster=attempt.cluster,
        producer=format_producer(attempt.by)[:MAX_TEXT],
        made_by=task_of(attempt.by),
        commit=attempt.code_commit,
        started_at=started_at,
        ended_at=ended_at,
        is_active=is_active,
        outcome=attempt.outcome,
        reason=_reason(attempt, ordered),
        traceback=error.traceback[-MAX_TRACE:] or None if error is not None else None,
        phases=phases,
        events=marks,
        preemptions=pod.preemptions,
        failures=pod.failures,
        restarts=pod.restarts,
        cost=AttemptCost(
            wall_s=max(0.0, until - begin) if until is not None and begin is not None else 0.0,
            waiting_s=pod.waiting_s,
            down_s=_down_s(marks, list(waits(ordered, until or 0.0))),
            lost_steps=pod.lost_steps,
            slice_hours=_slice_hours(phases, until) if ordered else None,
            resources=_resources(attempt.spec),
        ),
    )


def attempt_phases(
    events: Sequence[TimelineEvent], claimed_at: float | None, until: float | None, *, is_active: bool
) -> Iterator[AttemptPhase]:
    """Yield the intervals of an attempt in order, from the ``events`` of its pod and its claim.

    An attempt without a pod runs from its claim on. The last interval ends at ``until``, or lasts if it is active.
    """
    if not events:
        if claimed_at is not None:
            yield AttemptPhase(PhaseKind.RUNNING, claimed_at, None if is_active else until)
        return
    current: AttemptPhase | None = None
    if claimed_at is not None and claimed_at < events[0].at:
        current = AttemptPhase(PhaseKind.WAITING, claimed_at)
    for event in events:
        following = _phase_after(event, current)
        if following is current:
            continue
        if current is not None and event.at > current.started_at:
            yield replace(current, ended_at=event.at)
        current = following
    if current is not None:
        yield replace(current, ended_at=None if is_active else until)


def attempt_events(events: Sequence[TimelineEvent]) -> Iterator[AttemptEvent]:
    """Yield what happened to a pod: how its processes ended, each with its cost, and each restart."""
    starts = 0
    resumed = _next_first_steps(events)
    for event, resumed_at in zip(events, resumed, strict=True):
        step = None if event.step is None else int(event.step)
        if event.name == "started":
            starts += 1
            if starts > 1:
                yield AttemptEvent(EventKind.RESTARTED, event.at, step=step)
        elif event.name in ("preempted", "failed", "scaled"):
            yield AttemptEvent(
                EventKind(event.name),
                event.at,
                cause=event.cause,
                reason=_cut(event.sentence, _MAX_REASON) if event.sentence else _growth(event),
                step=step,
                lost_steps=event.lost_steps,
                down_s=None if resumed_at is None else resumed_at - event.at,
            )


def _next_first_steps(events: Sequence[TimelineEvent]) -> list[float | None]:
    """Return for each event when the processes made their next first step."""
    found: list[float | None] = []
    following: float | None = None
    for event in reversed(events):
        found.append(following)
        if event.name == "first_step":
            following = event.at
    return found[::-1]


def read_saves(output_path: str) -> list[AttemptEvent]:
    """Return when each checkpoint below an output was saved, as far as it is still there."""
    folder = posixpath.join(output_path, _CHECKPOINTS)
    names = [name for name in list_names(folder) if name.startswith("step-") and name[5:].isdecimal()]
    newest = sorted(names, key=lambda name: int(name[5:]))[-_MAX_CHECKPOINTS:]
    contents = read_contents([posixpath.join(folder, name, _CHECKPOINT_METADATA) for name in newest], SMALL)
    saves = [event for content in contents.values() if (event := _save(content)) is not None]
    return sorted(saves, key=lambda event: event.at)


def _read_attempt(output_path: str, number: int, file: str, content: Content | None) -> Attempt | AttemptReport:
    """Return an attempt, or a report that says why its file cannot be read."""
    unread = AttemptReport(number, attempt_folder(output_path, number))
    if content is None:
        return replace(unread, problem=f"{file} is gone.")
    if value_count(content.text) > _MAX_VALUES:
        return replace(unread, problem=f"{file} has more than {_MAX_VALUES:,} values, and a page reads no more.")
    try:
        return parse_attempt(file, content)
    except BadAttemptError as error:
        return replace(unread, problem=_cut(str(error)))


def _read_events(output_path: str, number: int) -> tuple[list[TimelineEvent], str | None]:
    """Return the events of an attempt's pod, or why they are unknown."""
    try:
        file = posixpath.join(attempt_folder(output_path, number), TIMELINE_FILE)
        return read_timeline(file, _MAX_TIMELINE_BYTES), None
    except BadTimelineError as error:
        return [], str(error)


def _phase_after(event: TimelineEvent, current: AttemptPhase | None) -> AttemptPhase | None:
    """Return the interval after ``event``; the same one if nothing changes."""
    slices = tuple(name for name in event.slices or () if name)
    match event.name:
        case "waiting":
            return current if current is not None and current.kind is PhaseKind.WAITING else _begin("waiting", event)
        case "reserved":
            return replace(_begin("reserved", event), slices=slices)
        case "started":
            return replace(_begin("starting", event), slices=slices)
        case "first_step":
            old = current if current is not None else _begin("running", event)
            return AttemptPhase(PhaseKind.RUNNING, event.at, None, old.slices, old.num_slices)
        case "preempted":  # noted after the pod has ended; the next slices may be there already
            is_next = current is not None and current.kind in (PhaseKind.WAITING, PhaseKind.RESERVED)
            return current if is_next else _begin("waiting", event)
        case "failed":  # the pod keeps its slices
            old = current if current is not None else _begin("reserved", event)
            return AttemptPhase(PhaseKind.RESERVED, event.at, None, old.slices, old.num_slices)
        case "scaled":
            return _begin("waiting", event)
        case "done":
            return _begin("committing", event)
        case "ended":
            return None
    return current


def _begin(kind: str, event: TimelineEvent) -> AttemptPhase:
    return AttemptPhase(PhaseKind(kind), event.at, num_slices=event.num_slices if kind != "waiting" else None)


def _end(attempt: Attempt, ended_at: float | None) -> Iterator[AttemptEvent]:
    kinds = {
        AttemptOutcome.SUCCEEDED: EventKind.COMMITTED,
        AttemptOutcome.FAILED: EventKind.FAILED,
        AttemptOutcome.STOPPED: EventKind.STOPPED,
        AttemptOutcome.LOST: EventKind.LOST,
    }
    if attempt.outcome is not None and ended_at is not None:
        yield AttemptEvent(kinds[attempt.outcome], ended_at, reason=_error_text(attempt))


def _reason(attempt: Attempt, events: Sequence[TimelineEvent]) -> str | None:
    """Return why the attempt ended: its own error, else the last end of its pod's processes."""
    own = _error_text(attempt)
    if own is not None or attempt.outcome is AttemptOutcome.SUCCEEDED:
        return own
    last = next((each for each in reversed(events) if each.name in _ENDS), None)
    return _cut(last.sentence) if last is not None and last.sentence and attempt.outcome is not None else None


def _error_text(attempt: Attempt) -> str | None:
    error = attempt.error
    if error is None:
        return None
    return _cut(": ".join(part for part in (error.type, error.message) if part))


def _growth(event: TimelineEvent) -> str | None:
    return None if event.grows_to is None else f"The pod grows to {event.grows_to} slices."


def _save(content: Content) -> AttemptEvent | None:
    try:
        if content.flaw is not None:
            return None
        fields = parse_fields(parse_object(content.text), {"step": COUNT, "timestamp": TEXT}, ("step", "timestamp"))
    except RecordFormatError:
        return None
    at = _seconds(fields["timestamp"])
    return None if at is None else AttemptEvent(EventKind.SAVED, at, step=fields["step"])


def _with_saves(reports: Sequence[AttemptReport], saves: Sequence[AttemptEvent]) -> list[AttemptReport]:
    """Add each save to the attempt in whose time it was; ``reports`` begin with the newest."""
    found: list[AttemptReport] = []
    left = list(saves)
    for report in reports:
        start = report.started_at
        own = [] if start is None else [event for event in left if event.at >= start]
        left = [event for event in left if start is None or event.at < start]
        found.append(replace(report, events=tuple(sorted((*report.events, *own), key=lambda event: event.at))))
    return found


def _with_goodput(output_path: str, report: AttemptReport, now: float) -> AttemptReport:
    """Add the goodput of the training so far, if it left its metrics in the output."""
    started = [phase.started_at for phase in report.phases if phase.kind in (PhaseKind.STARTING, PhaseKind.RUNNING)]
    path = posixpath.join(output_path, METRICS_FILE)
    content = read_contents([path], _MAX_METRICS_BYTES).get(path) if started else None
    if content is None or content.flaw is not None:
        return report
    rows = metrics_rows(content.text)
    productive_s = CountedSteps(rows).seconds
    ends = [phase.ended_at for phase in report.phases if phase.ended_at is not None]
    until = now if report.is_active else max(ends, default=now)
    share = goodput(productive_s, until - first_start(rows, started[0])) if productive_s else None
    return replace(report, goodput=share)


def _bounded(report: AttemptReport) -> AttemptReport:
    left_out = max(0, len(report.phases) - MAX_POINTS) + max(0, len(report.events) - MAX_POINTS)
    return replace(report, phases=report.phases[-MAX_POINTS:], events=report.events[-MAX_POINTS:], left_out=left_out)


def _down_s(marks: Sequence[AttemptEvent], waited: Sequence[tuple[float, float]]) -> float:
    """Return the seconds from ends to next steps, each second once, without those in which the pod waited."""
    total, reached = 0.0, -math.inf
    for at, down_s in sorted((mark.at, mark.down_s) for mark in marks if mark.down_s is not None):
        start, reached = max(at, reached), max(reached, at + down_s)
        overlaps = (min(reached, end) - max(start, begin) for begin, end in waited)
        total += max(0.0, reached - start - sum(max(0.0, each) for each in overlaps))
    return total


def _slice_hours(phases: Sequence[AttemptPhase], until: float | None) -> float:
    held = (each for each in phases if each.kind not in (PhaseKind.WAITING, PhaseKind.COMMITTING))
    return sum(_length(each, until) * (each.num_slices or 1) for each in held) / 3600


def _length(phase: AttemptPhase, until: float | None) -> float:
    end = phase.ended_at if phase.ended_at is not None else until
    return max(0.0, end - phase.started_at) if end is not None else 0.0


def _resources(spec: Mapping[str, Any]) -> str | None:
    try:
        return _cut(describe_spec_resources(spec["resources"]))
    except (KeyError, TypeError, ValueError, AttributeError):  # the spec of an adopted output, or a foreign one
        return None


def _seconds(text: str) -> float | None:
    """Return the time in ISO 8601 as seconds since 1970; without a zone it is UTC, as on the machines of a cluster."""
    try:
        at = datetime.datetime.fromisoformat(text)
        return (at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _cut(text: str, chars: int = MAX_TEXT) -> str:
    return text if len(text) <= chars else f"{text[:chars]}…"
