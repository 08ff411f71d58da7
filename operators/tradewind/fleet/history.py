"""History of the fleet by day: preempted slices by zone, and goodput by cluster.

Two kinds of records tell of preemptions: the reports of upkeep, and the timelines of pods. Upkeep misses a slice that
Ray's autoscaler replaced between two passes, and a timeline only tells of slices in use. So for each slice and day the
larger count of the two counts. Days are those of UTC.

Goodput is computed from timelines alone: from the first step after a start to the end of that start, without the share
of steps that were lost. Checkpoints and validation are not subtracted, as the task's log does from the metrics.
"""

from __future__ import annotations

import datetime
import posixpath
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tradewind.cloud_tpu.goodput import goodput
from tradewind.fleet.upkeep import PastReport, Subject, UpkeepLine
from tradewind.ray_jobs.details import OUTPUT_PATH, JobDetails
from tradewind.records.attempts import attempt_folder, attempt_of_job
from tradewind.records.parsing import RecordFormatError
from tradewind.runtime.pods.timeline import TIMELINE_FILE, TimelineEvent, parse_timeline
from tradewind.storage import Roots
from tradewind.storage.confinement import confined_to
from tradewind.storage.files import read_contents

DAY_S: Final = 86_400.0
DAYS: Final = 14
"""Days that are shown, today included."""
MAX_PODS: Final = 200
"""Timelines of one cluster that are read, the newest."""
_READ_TOGETHER: Final = 8
"""Timelines in memory together."""
_MAX_BYTES: Final = 2 << 20
"""Of a timeline: 10,000 events as a pod writes them."""
_MAX_EVENTS: Final = 60_000
"""Of all timelines of a cluster, of some 500 bytes each."""
_PREEMPTED: Final = ("Google says PREEMPTED", "Google says SUSPEND")
"""What upkeep reports of a preempted slice, and of a queued resource whose capacity was taken."""
_YEAR_2100: Final = 4_102_444_800.0
"""No event is later; any job on a cluster may write a timeline."""
_ENDS: Final = frozenset({"preempted", "failed", "ended", "done", "scaled"})


@dataclass(frozen=True)
class PreemptionCount:
    """Preempted slices of one zone on one day."""

    day: str
    zone: str
    count: int


@dataclass(frozen=True)
class DayGoodput:
    """Goodput of one cluster on one day.

    Attributes:
        productive_s: Seconds of its pods in steps that count.
        wall_s: Seconds since the first starts of its pods.
        share: The ratio of the two.
    """

    day: str
    cluster: str
    productive_s: float
    wall_s: float
    share: float | None


@dataclass(frozen=True)
class PodRecord:
    """The timeline of one pod.

    Attributes:
        ended_at: End of its job, in seconds since the epoch; None while it runs.
    """

    cluster: str
    events: Sequence[TimelineEvent]
    ended_at: float | None = None


@dataclass(frozen=True)
class _Span:
    """A part of a pod's wall time, with its seconds in steps that count."""

    begin: float
    end: float
    productive_s: float


def read_pods(cluster: str, jobs: Iterable[JobDetails], roots: Roots, now: float) -> list[PodRecord]:
    """Read the timelines of the steps among a cluster's ``jobs``, at most ``MAX_PODS``, of the days that are shown.

    The newest come first, up to ``_MAX_EVENTS`` in all. A longer file than ``_MAX_BYTES`` counts as one without events.

    Any client of the cluster writes the metadata of jobs, so paths outside of ``roots`` are not read. Invalid timelines
    are left out.

    Raises:
        StorageError: The store does not answer.
    """
    files: dict[str, JobDetails] = {}
    for job in sorted(jobs, key=lambda job: -(job.started_ms or 0)):
        output, attempt = job.metadata.get(OUTPUT_PATH), attempt_of_job(job.job)
        is_recent = (job.ended_ms or now * 1000) / 1000 > now - DAYS * DAY_S
        if output and attempt and is_recent and len(files) < MAX_PODS and roots.allow(output):
            files[posixpath.join(attempt_folder(output, attempt), TIMELINE_FILE)] = job
    pods: list[PodRecord] = []
    paths, events_left = list(files), _MAX_EVENTS
    for start in range(0, len(paths), _READ_TOGETHER):
        if events_left <= 0:
            break
        with confined_to(roots):
            contents = read_contents(paths[start : start + _READ_TOGETHER], _MAX_BYTES)
        for path, content in contents.items():
            with suppress(RecordFormatError):
                events = parse_timeline(content.text) if content.flaw is None else []
                events_left -= len(events)
                ended_ms = files[path].ended_ms
                pods.append(PodRecord(cluster, events, None if ended_ms is None else ended_ms / 1000))
    return pods


def last_days(now: float, days: int = DAYS) -> list[str]:
    """Return the days that are shown, the oldest first."""
    return [day_of(now - DAY_S * ago) for ago in reversed(range(days))]


def day_of(at: float) -> str:
    """Return the day of a time, as ``2026-11-29``."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).date().isoformat()


def preemptions_by_day(
    reports: Iterable[PastReport], pods: Iterable[PodRecord], zones: Mapping[str, str]
) -> list[PreemptionCount]:
    """Count preempted slices by day and zone, in order.

    Args:
        zones: Cluster → zone; other clusters are left out.
    """
    of_upkeep = Counter((day_of(at), cluster, name) for at, cluster, name in _seen_by_upkeep(reports))
    of_pods = Counter(
        (day_of(event.at), pod.cluster, event.slice_name or "")
        for pod in pods
        for event in pod.events
        if event.name == "preempted" and 0 <= event.at < _YEAR_2100
    )
    counts: Counter[tuple[str, str]] = Counter()
    for slice_day in of_upkeep.keys() | of_pods.keys():
        day, cluster, _ = slice_day
        if cluster in zones:
            counts[day, zones[cluster]] += max(of_upkeep[slice_day], of_pods[slice_day])
    return [PreemptionCount(day, zone, count) for (day, zone), count in sorted(counts.items())]


def _seen_by_upkeep(reports: Iterable[PastReport]) -> Iterator[tuple[float, str, str]]:
    """Yield time, cluster and slice of each preemption: of a slice that the report before did not list as preempted.

    A slice that was replaced in the report before was preempted again.
    """
    known: set[tuple[str, str]] = set()
    for report in sorted(reports, key=lambda report: report.at):
        preempted = {(line.cluster, line.name): line for line in report.lines if _is_preempted(line)}
        yield from ((report.at, *name) for name in preempted.keys() - known)
        still = {name for name, line in preempted.items() if not line.done.startswith(("replaced", "deleted"))}
        known = still | {name for name in known if name[0] not in report.clusters}


def _is_preempted(line: UpkeepLine) -> bool:
    return line.about is Subject.SLICE and any(text in line.state for text in _PREEMPTED)


def goodput_by_day(pods: Iterable[PodRecord], now: float) -> list[DayGoodput]:
    """Return the goodput of each cluster on each day that is shown and has a pod, in order."""
    shown = now - DAYS * DAY_S, now + DAY_S
    wall: dict[tuple[str, str], float] = defaultdict(float)
    productive: dict[tuple[str, str], float] = defaultdict(float)
    for pod in pods:
        for span in _spans(pod, now):
            for day, share in _by_day(span, *shown):
                wall[day, pod.cluster] += share * (span.end - span.begin)
                productive[day, pod.cluster] += share * span.productive_s
    found = []
    for day, cluster in sorted(wall):
        made_s, wall_s = productive[day, cluster], wall[day, cluster]
        found.append(DayGoodput(day, cluster, made_s, wall_s, goodput(made_s, wall_s)))
    return found


def _spans(pod: PodRecord, now: float) -> Iterator[_Span]:
    """Yield the time from a pod's first start to its end, divided at its events."""
    events = sorted(pod.events, key=lambda event: event.at)
    begin = next((index for index, event in enumerate(events) if event.name == "started"), None)
    if begin is None:
        return
    if events[-1].name != "done":
        until = now if pod.ended_at is None else pod.ended_at
        events.append(TimelineEvent("ended", max(events[-1].at, until)))
    previous, is_stepping, saved = events[begin].at, False, 0.0
    for event in events[begin + 1 :]:
        seconds = event.at - previous
        yield _Span(previous, event.at, seconds * _kept(event, saved) if is_stepping else 0.0)
        previous = event.at
        if event.name == "first_step":
            is_stepping = True
        elif event.name in _ENDS:
            is_stepping, saved = False, event.checkpoint_step or saved


def _kept(event: TimelineEvent, saved: float) -> float:
    """Return the share of the steps since a start that count after its end."""
    made = (event.step or 0.0) - saved
    return 1.0 - min(1.0, event.lost_steps / made) if made > 0 else 1.0


def _by_day(span: _Span, since: float, until: float) -> Iterator[tuple[str, float]]:
    """Yield the days of a span between two times, each with its share of the whole span."""
    at, end = max(span.begin, since), min(span.end, until)
    while at < end:
        midnight = min(end, (at // DAY_S + 1) * DAY_S)
        yield day_of(at), (midnight - at) / (span.end - span.begin)
        at = midnight
