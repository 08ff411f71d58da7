"""Who changes a cluster: one object in its bucket, which every command that changes it holds in turn.

It is written by compare-and-swap only and never removed. Whoever holds it renews it, and has nothing done any more once
it could not for ``fence_s``; after ``stale_s`` without a change, by the store's own clock, another one may take it. The
times are those of leases. An operation that ended before it was done leaves its phase behind: the same operation, run
again, goes on from there, and any other is refused until somebody does that or says that it is to be abandoned; those
that consist of one act, done or not, hold up nobody.

A phase is written before what it names is begun, so whoever goes on does that phase again: its acts must bear that.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from types import TracebackType
from typing import Any, Final

from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError, on_one_line
from tradewind.machine import boot_time
from tradewind.records.lease import HEARTBEAT_S, LeaseTimes
from tradewind.records.lease_store import Read, Write
from tradewind.records.parsing import (
    COUNT,
    MOMENT,
    OBJECT,
    FieldType,
    RecordFormatError,
    is_number,
    is_text,
    one_of,
    parse_fields,
    parse_object,
)
from tradewind.storage.backends import StoredObject
from tradewind.storage.errors import BadRecordError, StoreError
from tradewind.storage.swap import read_stored, write_if

# What the marker of a cluster says: who does what to it, how far that has come, and when it was written.

_LONGEST_HEARTBEAT_S: Final = 3600.0
MAX_TEXT_CHARS: Final = 300
ADD_WORKER: Final = "add-worker"
REMOVE_WORKER: Final = "remove-worker"
PUSH_ENV: Final = "push-env"
_SINGLE_ACTS: Final = frozenset({ADD_WORKER, REMOVE_WORKER, PUSH_ENV})
"""Operations that nobody has to go on with: what they do to a slice or host is done or not."""


class LockState(StrEnum):
    """What a marker says of its operation."""

    HELD = "held"
    """Somebody is at it, if the marker is not stale."""
    LEFT = "left"
    """It ended before it was done, and said so."""
    DONE = "done"
    """It is done: anybody may begin the next one."""


@dataclass(frozen=True)
class LockRecord:
    """What the marker's object holds.

    Attributes:
        operation: The name of the command: ``restart``.
        run: Unique to each time that the operation is begun; who goes on with it keeps it.
        phase: How far it has come, in the operation's own words.
        holder: Who holds it, for people.
        token: Unique to each holding.
        since: When the operation was begun, and
        until: when the marker is stale if it is not renewed; both by the holder's clock, for people only.
        heartbeat_s: How often it is renewed.
        details: What the operation needs to go on; no secrets, since everybody who sees the bucket can read it.
        after: The token of the holding before, if that said that its operation was done.
        counter: Raised by every write, so that no text is written twice.
    """

    operation: str
    run: str
    phase: str
    holder: str
    token: str
    since: float
    until: float
    heartbeat_s: float = HEARTBEAT_S
    state: LockState = LockState.HELD
    details: Mapping[str, Any] = field(default_factory=dict)
    after: str = ""
    counter: int = 1

    @property
    def times(self) -> LeaseTimes:
        """When what happens."""
        return LeaseTimes(self.heartbeat_s)

    @staticmethod
    def begun(
        now: float,
        operation: str,
        phase: str,
        holder: str,
        heartbeat_s: float,
        details: Mapping[str, Any],
        over: LockRecord | None,
    ) -> LockRecord:
        """That of a new run of ``operation``, which replaces ``over``."""
        run, token, until = uuid.uuid4().hex, uuid.uuid4().hex, now + LeaseTimes(heartbeat_s).stale_s
        after = over.token if over and over.state is LockState.DONE else ""
        begun = LockRecord(operation, run, phase, holder, token, now, until, heartbeat_s, details=details, after=after)
        return replace(begun, counter=over.counter + 1 if over else 1)

    def resumed(self, now: float, holder: str, heartbeat_s: float) -> LockRecord:
        """That of ``holder``, who goes on with the same run."""
        token = uuid.uuid4().hex
        other = replace(self, holder=holder, token=token, heartbeat_s=heartbeat_s, state=LockState.HELD, after="")
        return other.changed(now)

    def changed(self, now: float, **changes: Any) -> LockRecord:
        """The next value of it."""
        return replace(self, until=now + self.times.stale_s, counter=self.counter + 1, **changes)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of(stored: StoredObject, path: str) -> LockRecord:
        """The marker in an object as it was read.

        Raises:
            BadRecordError: It is none. Nobody can say whether the cluster is being changed.
        """
        try:
            if stored.flaw is not None:
                raise RecordFormatError(stored.flaw)
            known = parse_fields(parse_object(stored.text), _KINDS, _KINDS)
        except RecordFormatError as flaw:
            advice = "Make sure that nobody starts, stops or restarts the cluster, and remove it."
            raise BadRecordError(path, str(flaw), advice) from None
        return LockRecord(**{**known, "state": LockState(known["state"])})


_WORDS: Final = FieldType(
    lambda value: is_text(value) and len(value) <= MAX_TEXT_CHARS and value.isprintable(), "a short text of one line"
)
"""People are told them, in logs and on terminals, and whoever can write the bucket can write a marker."""
_RUN: Final = re.compile(r"[0-9a-f]{32}")
"""The names of folders and the ids of jobs are made of it, and whoever can write the bucket can write a marker."""
_KINDS: Final = {
    "operation": _WORDS,
    "run": FieldType(lambda value: is_text(value) and _RUN.fullmatch(value) is not None, "32 hexadecimal digits"),
    "phase": _WORDS,
    "holder": _WORDS,
    "token": _WORDS,
    "since": MOMENT,
    "until": MOMENT,
    "heartbeat_s": FieldType(
        lambda value: is_number(value) and 0 < value <= _LONGEST_HEARTBEAT_S, "a number of seconds"
    ),
    "state": one_of(LockState),
    "details": OBJECT,
    "after": _WORDS,
    "counter": COUNT,
}


@dataclass(frozen=True)
class FoundLock:
    """A marker as it was read or written.

    Attributes:
        tag: What the next swap must find.
        age_s: How long ago it was written, by the store's own clock.
    """

    marker: LockRecord
    tag: str
    age_s: float

    @property
    def is_held(self) -> bool:
        """Whether somebody is changing the cluster."""
        return self.marker.state is LockState.HELD and self.age_s <= self.marker.times.stale_s

    @property
    def is_interrupted(self) -> bool:
        """Whether an operation has ended before it was done, and left something half-done."""
        is_half_done = self.marker.state is not LockState.DONE and self.marker.operation not in _SINGLE_ACTS
        return is_half_done and not self.is_held

    def sentence(self, cluster: str, now: float) -> str:
        """Who does what to ``cluster``, and until when at least, by a clock that says ``now``."""
        marker = self.marker
        since = f"since {_clock_time(marker.since)}"
        if self.is_held:
            until = _clock_time(now + marker.times.stale_s - self.age_s)
            return (
                f"Cluster {cluster}: {marker.holder} is at {marker.operation} {since}, phase {marker.phase}, and holds "
                f"the cluster until {until} at least."
            )
        ended = "is done" if marker.state is LockState.DONE else "was interrupted"
        return f"Cluster {cluster}: {marker.operation} by {marker.holder} {since} {ended} in phase {marker.phase}."


def _clock_time(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment))


_RETRY_S: Final = 1.0


class ClusterBusyError(FleetError):
    """Somebody else is changing the cluster; the message says who, and until when."""


class InterruptedOperationError(FleetError):
    """Another operation on the cluster has ended before it was done."""


class MarkerLostError(FleetError):
    """The marker is no longer ours, so nothing may be changed any more."""


ClusterLockLostError = MarkerLostError


class ClusterLock:
    """The marker of one cluster.

    Args:
        cluster: Its name, for messages.
        path: Where the object lies; see ``lock_path``.
        now: The time, for people; no judgement rests on it.
        clock: Seconds that never stand still, by which a holder counts how long ago it renewed.
        read: Reads the object.
        write: Swaps it.
        pause: Waits between two tries of a write that the store refuses.
    """

    def __init__(
        self,
        cluster: str,
        path: str,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = boot_time,
        read: Read = read_stored,
        write: Write = write_if,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.cluster = cluster
        self.path = path
        self.now = now
        self.clock = clock
        self.pause = pause
        self._read = read
        self._write = write

    @staticmethod
    def of(cluster: FleetCluster) -> ClusterLock:
        """That of a cluster of the fleet."""
        return ClusterLock(cluster.name, lock_path(cluster))

    def read(self) -> FoundLock | None:
        """The marker, or None if nothing was ever done to the cluster.

        Raises:
            StoreError: The store refuses or does not answer.
            BadRecordError: It cannot be read.
        """
        stored = self._read(self.path)
        return None if stored is None else FoundLock(LockRecord.of(stored, self.path), stored.tag, stored.age_s)

    def take(
        self,
        operation: str,
        phase: str,
        *,
        holder: str | None = None,
        details: Mapping[str, Any] | None = None,
        is_anew: bool = False,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> HeldClusterLock:
        """Hold the cluster for ``operation``, which begins with ``phase``, or goes on where it was interrupted.

        Args:
            holder: Who does it; default: this user on this machine.
            details: What the operation needs to go on, if it begins.
            is_anew: Begin, whatever was interrupted.

        Raises:
            ClusterBusyError: Somebody else holds it.
            InterruptedOperationError: Another operation was interrupted.
            StoreError: The store refuses or does not answer. If it took the marker all the same, it is stale soon.
            BadRecordError: The marker cannot be read.
        """
        over = self.read()
        if over is not None and over.is_held:
            raise self._busy(over)
        now, who = self.now(), on_one_line(holder or this_user())[:MAX_TEXT_CHARS]  # else nobody could read it again
        is_resumed = over is not None and over.is_interrupted and not is_anew
        if over is not None and is_resumed:
            if over.marker.operation != operation:
                raise InterruptedOperationError(
                    f"{over.sentence(self.cluster, now)} Run '{over.marker.operation}' again, which goes on from "
                    "there, or have it abandoned."
                )
            marker = over.marker.resumed(now, who, heartbeat_s)
        else:
            marker = LockRecord.begun(
                now, operation, phase, who, heartbeat_s, dict(details or {}), over.marker if over else None
            )
        asked_at = self.clock()
        taken = self.swap(marker, over.tag if over else None)
        if taken is None:
            raise self._busy(self.read())
        return HeldClusterLock(self, taken, asked_at, is_resumed=is_resumed)

    def swap(self, marker: LockRecord, expected: str | None) -> FoundLock | None:
        """Put ``marker`` where the object with the tag ``expected`` is; None if another one is there."""
        stored = self._write(self.path, marker.to_json(), expected)
        return None if stored is None else FoundLock(marker, stored.tag, stored.age_s)

    def _busy(self, found: FoundLock | None) -> ClusterBusyError:
        if found is None or not found.is_held:
            return ClusterBusyError(f"Cluster {self.cluster}: somebody else has changed it just now: try again.")
        return ClusterBusyError(f"{found.sentence(self.cluster, self.now())} Nothing was done: try again then.")


class HeldClusterLock:
    """A marker that this process holds. In a ``with`` block it is renewed; at the end, unless done, it is left.

    What changes the cluster asks ``check`` first, each time.
    """

    def __init__(self, store: ClusterLock, found: FoundLock, renewed_at: float, *, is_resumed: bool) -> None:
        self.is_resumed = is_resumed
        """Whether this goes on with what was interrupted."""
        self._store = store
        self._found = found
        self._renewed_at = renewed_at
        self._is_lost = False
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew_in_time, daemon=True, name="cluster-marker")

    @property
    def marker(self) -> LockRecord:
        """As it was written last."""
        return self._found.marker

    @property
    def ends_at(self) -> float:
        """Until when the cluster may be changed, by the boot clock; 0 if it may not be any more. Nobody is asked."""
        if self._is_lost or self.marker.state is not LockState.HELD:
            return 0.0
        return self._renewed_at + self.marker.times.fence_s

    @property
    def killed_at(self) -> float:
        """By when nothing may be at work any more that was begun under it, by the same clock."""
        return self._renewed_at + self.marker.times.kill_s

    @property
    def is_held(self) -> bool:
        """Whether the cluster may be changed; nobody is asked."""
        return self._store.clock() < self.ends_at

    def check(self) -> None:
        """Refuse to change anything more.

        Raises:
            MarkerLostError: Others may hold the marker by now.
        """
        if not self.is_held:
            raise MarkerLostError(
                f"Cluster {self._store.cluster}: {self._store.path} could not be renewed in time, so others may be "
                f"changing the cluster: look at it, then run '{self.marker.operation}' again."
            )

    def advance(self, phase: str, **details: Any) -> None:
        """Begin ``phase``; ``details`` replace those of the same names.

        Raises:
            MarkerLostError: The marker is no longer ours.
            StoreError: The store has refused or been silent for too long.
        """
        self._write(phase=phase, details={**self.marker.details, **details})

    def finish(self) -> None:
        """Say that the operation is done. Raises the same."""
        try:
            self._write(state=LockState.DONE)
        except MarkerLostError:
            found = self._store.read()
            if found is None or found.marker.after != self.marker.token:  # else it was written, and no answer came
                raise
        self._over.set()

    def renew(self) -> None:
        """Write it again as it is. Raises the same, the errors of the store at once."""
        with self._lock:
            self._change()

    def leave(self) -> None:
        """Let others have it at once, though the operation is not done; nothing if it is, or if it is not ours."""
        if self.is_held:
            try:
                with self._lock:
                    self._change(state=LockState.LEFT)
            except (MarkerLostError, StoreError) as failure:
                _warn(f"{self._store.path} is not given back, and so held until it is stale ({failure}).")

    def __enter__(self) -> HeldClusterLock:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self.leave()

    def _write(self, **changes: Any) -> None:
        while True:
            self.check()
            try:
                with self._lock:
                    return self._change(**changes)
            except StoreError as error:
                self._store.pause(min(_RETRY_S, self.marker.times.poll_s))
                if not self.is_held:
                    raise error

    def _change(self, **changes: Any) -> None:
        """The next value of our own marker; what we wrote before and heard no answer of is ours too."""
        while True:
            self.check()
            asked_at = self._store.clock()
            changed = self._store.swap(self.marker.changed(self._store.now(), **changes), self._found.tag)
            if changed is not None:
                self._found, self._renewed_at = changed, asked_at
                return
            found = self._store.read()
            if found is None or found.marker.token != self.marker.token:
                self._is_lost = True
            else:
                self._found = replace(found, marker=replace(found.marker, state=LockState.HELD))

    def _renew_in_time(self) -> None:
        while not self._over.wait(self.marker.times.poll_s):
            if self._store.clock() - self._renewed_at < self.marker.heartbeat_s:
                continue
            try:
                self.renew()
            except MarkerLostError:
                return
            except StoreError as error:
                _warn(f"{self._store.path} cannot be renewed ({error}); going on until it is too old.")


def lock_path(cluster: FleetCluster) -> str:
    """Where the marker of ``cluster`` lies."""
    return f"gs://{cluster.bucket}/.tradewind/clusters/{cluster.name}/marker.json"


def this_user() -> str:
    """Who this is, as others are told."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user of a container without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _warn(sentence: str) -> None:
    print(f"tradewind: {on_one_line(sentence)}", file=sys.stderr, flush=True)
