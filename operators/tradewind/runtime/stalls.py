"""Decide from the records of a running attempt whether it is stalled: no training step, or no shard, for too long.

A pod that waits for a slice is not stalled. A training counts from its last step or the last start of its processes,
whichever is later; a data pipeline from its last finished shard. Of any other function the records show no progress,
so it is never called stalled.
"""

from __future__ import annotations

import datetime
import posixpath
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.cloud_tpu.goodput import METRICS_FILE, bounded_objects
from tradewind.records.attempts import attempt_folder, read_attempt_or_none
from tradewind.records.lease import Phase
from tradewind.records.parsing import RecordFormatError, is_number, parse_object
from tradewind.records.record import Record, RecordState, read_record
from tradewind.runtime.pods.timeline import TIMELINE_FILE, TimelineEvent, read_timeline
from tradewind.storage.bounded_read import SMALL
from tradewind.storage.client import file_system_of, translated_client_errors
from tradewind.storage.swap import read_stored
from tradewind.text import format_duration

STEP_LIMIT_S: Final = 15 * 60.0
"""Default limit of a training: seconds without a step."""
SHARD_LIMIT_S: Final = 45 * 60.0
"""Default limit of a data pipeline: seconds without a finished shard."""
PROGRESS_FILE: Final = ".dataset/progress.json"
"""File of an output in which a data pipeline reports its shards."""
_TAIL_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class StallLimits:
    """Seconds without progress after which an attempt is stalled."""

    step_s: float = STEP_LIMIT_S
    shard_s: float = SHARD_LIMIT_S


DEFAULT_LIMITS: Final = StallLimits()


@dataclass(frozen=True)
class AttemptProgress:
    """What the records say of an attempt that runs. Times are seconds since the epoch.

    Attributes:
        started_at: Start of the attempt.
        pod_started_at: Last start of its pod's processes; None without a pod, and while it waits for hosts.
        is_waiting: Whether its pod waits for hosts.
        is_training: Whether this attempt has finished a step, or an earlier one has.
        step_at: End of the last step.
        shard_at: End of the last shard, or the start of the stage; None without a pipeline that runs.
    """

    started_at: float
    pod_started_at: float | None = None
    is_waiting: bool = False
    is_training: bool = False
    step_at: float | None = None
    shard_at: float | None = None


@dataclass(frozen=True)
class Stall:
    """An attempt without progress.

    Attributes:
        what: What is missing: ``step`` or ``shard``.
        since: Time of the last progress, in seconds since the epoch.
        seconds: Time without progress.
        limit_s: The limit that it exceeds.
    """

    what: str
    since: float
    seconds: float
    limit_s: float

    def __str__(self) -> str:
        return f"no {self.what} for {format_duration(self.seconds)} (limit {format_duration(self.limit_s)})"


def decide_stall(progress: AttemptProgress, now: float, limits: StallLimits = DEFAULT_LIMITS) -> Stall | None:
    """Return the stall of an attempt at ``now``; None if it progresses, waits, or shows no progress at all."""
    if progress.is_waiting:
        return None
    if progress.is_training:
        begun = progress.started_at if progress.pod_started_at is None else progress.pod_started_at
        return _exceeded("step", max(begun, progress.step_at or 0.0), now, limits.step_s)
    if progress.shard_at is not None:
        return _exceeded("shard", max(progress.started_at, progress.shard_at), now, limits.shard_s)
    return None


def _exceeded(what: str, since: float, now: float, limit_s: float) -> Stall | None:
    return Stall(what, since, now - since, limit_s) if now - since > limit_s else None


def read_stall(
    output_path: str,
    record: Record | None = None,
    *,
    now: float | None = None,
    limits: StallLimits = DEFAULT_LIMITS,
) -> Stall | None:
    """Return the stall of the attempt that runs at ``output_path``; None if none runs, or if it is not stalled.

    The caller has checked the path against the allowed roots.

    Args:
        record: The record of the output, if the caller has read it.
        now: Seconds since the epoch; default: this machine's clock.

    Raises:
        StorageError: The store does not answer, or the timeline is invalid.
    """
    moment = time.time() if now is None else now
    progress = read_progress(output_path, record or read_record(output_path), moment)
    return None if progress is None else decide_stall(progress, moment, limits)


def read_progress(output_path: str, record: Record, now: float) -> AttemptProgress | None:
    """Return the progress of the attempt that runs by ``record``; None if none runs. Raises as ``read_stall``."""
    lease = record.lease
    if record.state is not RecordState.AT_WORK or lease is None or lease.phase is not Phase.RUNNING:
        return None
    attempt = read_attempt_or_none(output_path, lease.attempt)
    started_at = seconds_of(attempt.started_at) if attempt is not None else None
    if started_at is None:
        return None
    events = read_timeline(posixpath.join(attempt_folder(output_path, lease.attempt), TIMELINE_FILE))
    step_at = last_step_at(_tail(posixpath.join(output_path, METRICS_FILE)))
    pod_started_at, is_waiting = pod_state(events)
    is_training = any(event.name == "first_step" for event in events)
    # Without a pod, a file of an earlier attempt does not show that this one has begun to train.
    is_training |= step_at is not None and (pod_started_at is not None or step_at >= started_at)
    shard_at = None if is_training else _shard_at(output_path, started_at, now)
    return AttemptProgress(started_at, pod_started_at, is_waiting, is_training, step_at, shard_at)


def pod_state(events: Sequence[TimelineEvent]) -> tuple[float | None, bool]:
    """Return when the processes of a pod were last started, None if they do not run, and whether it waits for hosts."""
    started_at: float | None = None
    for event in sorted(events, key=lambda event: event.at):
        if event.name == "started":
            started_at = event.at
        elif event.name != "first_step":  # waiting, reserved, or an end
            started_at = None
    return started_at, bool(events) and started_at is None


def last_step_at(metrics: str) -> float | None:
    """Return the time of the last row in the end of a metrics file; None without one."""
    times = [
        row["time"] for row in bounded_objects(metrics) if is_number(row.get("step")) and is_number(row.get("time"))
    ]
    return float(times[-1]) if times else None


def last_shard_at(progress: Mapping[str, Any], written_at: float) -> float | None:
    """Return when the running stage of a pipeline finished its last shard, or began.

    Args:
        progress: Content of the progress file.
        written_at: When the file was written.

    Returns:
        None if no stage runs, or if an earlier version wrote the file.
    """
    stages = progress.get("stages")
    last = stages[-1] if isinstance(stages, list) and stages else None
    if not isinstance(stages, list) or not isinstance(last, Mapping) or progress.get("problem"):
        return None
    counts: list[Any] = [progress.get("total_stages"), *map(last.get, ("shards", "done", "failed", "idle_s"))]
    numbers = [float(count) for count in counts if is_number(count)]
    if len(numbers) < len(counts):
        return None
    total, shards, done, failed, idle_s = numbers
    is_over = len(stages) >= total and done + failed >= shards
    return None if is_over else written_at - idle_s


def seconds_of(moment: str) -> float | None:
    """Return a time of an attempt in seconds since the epoch; None if it is no time."""
    try:
        return datetime.datetime.fromisoformat(moment).timestamp()
    except (ValueError, OverflowError):
        return None


def _shard_at(output_path: str, started_at: float, now: float) -> float | None:
    stored = read_stored(posixpath.join(output_path, PROGRESS_FILE))
    if stored is None or stored.flaw is not None or len(stored.text) > SMALL:
        return None
    written_at = now - stored.age_s
    if written_at < started_at:  # an earlier attempt wrote it
        return None
    try:
        return last_shard_at(parse_object(stored.text), written_at)
    except RecordFormatError:
        return None


def _tail(path: str) -> str:
    """Return the end of a file, from the beginning of a line; empty if there is no file."""
    with translated_client_errors(path):
        fs, name = file_system_of(path)
        fs.invalidate_cache(posixpath.dirname(name))
        try:
            info = fs.info(name)
            if info["type"] != "file" or info.get("islink"):  # a pipe is never opened: that would block
                return ""
            size = int(info["size"] or 0)
            data = bytes(fs.cat_file(name, start=max(0, size - _TAIL_BYTES), end=size)) if size else b""
        except (FileNotFoundError, NotADirectoryError):
            return ""
    text = data.decode(errors="replace")
    return text if size <= _TAIL_BYTES else text.partition("\n")[2]
