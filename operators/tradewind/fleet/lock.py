"""Cluster lock: one object in the cluster's bucket, which serializes the commands that change the cluster.

Commands write it by compare-and-swap only and never remove it. The holder renews it, and changes nothing once the last
renewal is older than ``fence_s``. Another command may take it after ``stale_s`` without a change, by the store's clock.
Both times are those of leases. An operation that ends early leaves its phase in the lock: the same operation, run
again, resumes there, and any other is refused until a user resumes or abandons it. Operations of a single act do not
block others.

The holder records a phase before it begins, so a resumed operation repeats that phase: each phase must be repeatable.
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
from tradewind.text import format_time

_MAX_HEARTBEAT_S: Final = 3600.0
_RETRY_S: Final = 1.0
MAX_TEXT_CHARS: Final = 300
ADD_WORKER: Final = "add-worker"
REMOVE_WORKER: Final = "remove-worker"
PUSH_ENV: Final = "push-env"
_SINGLE_ACTS: Final = frozenset({ADD_WORKER, REMOVE_WORKER, PUSH_ENV})
"""Operations that need no resumption: their one act on a slice or host is done or not."""


class LockState(StrEnum):
    """State of the operation in a lock."""

    HELD = "held"
    """A command runs it, unless the lock is stale."""
    LEFT = "left"
    """It ended early and released the lock."""
    DONE = "done"
    """It is done: any command may begin the next one."""


@dataclass(frozen=True)
class LockRecord:
    """Content of the lock's object.

    Attributes:
        operation: The name of the command: ``restart``.
        run: Unique to each new start of the operation; a resumption keeps it.
        phase: Progress, in the operation's own words.
        holder: Name of the holder, for display.
        token: Unique to each holder.
        since: Start of the operation, by the holder's clock, for display only.
        until: When the lock is stale if it is not renewed, by the same clock, for display only.
        heartbeat_s: Time between renewals.
        details: Data for a resumption; no secrets, since every reader of the bucket can read it.
        after: The token of the previous holder, if its operation was done.
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
        """Fencing times, from the heartbeat interval."""
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
        """Return the record of a new run of ``operation``, which replaces ``over``."""
        run, token, until = uuid.uuid4().hex, uuid.uuid4().hex, now + LeaseTimes(heartbeat_s).stale_s
        after = over.token if over and over.state is LockState.DONE else ""
        begun = LockRecord(operation, run, phase, holder, token, now, until, heartbeat_s, details=details, after=after)
        return replace(begun, counter=over.counter + 1 if over else 1)

    def resumed(self, now: float, holder: str, heartbeat_s: float) -> LockRecord:
        """Return the record with which ``holder`` resumes the same run."""
        token = uuid.uuid4().hex
        other = replace(self, holder=holder, token=token, heartbeat_s=heartbeat_s, state=LockState.HELD, after="")
        return other.changed(now)

    def changed(self, now: float, **changes: Any) -> LockRecord:
        """Return its next value."""
        return replace(self, until=now + self.times.stale_s, counter=self.counter + 1, **changes)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of(stored: StoredObject, path: str) -> LockRecord:
        """Parse the lock in a stored object.

        Raises:
            BadRecordError: It is invalid, so it is unknown whether a command is changing the cluster.
        """
        try:
            if stored.flaw is not None:
                raise RecordFormatError(stored.flaw)
            known = parse_fields(parse_object(stored.text), _KINDS, _KINDS)
        except RecordFormatError as flaw:
            advice = "Make sure that no user starts, stops or restarts the cluster, and remove it."
            raise BadRecordError(path, str(flaw), advice) from None
        return LockRecord(**{**known, "state": LockState(known["state"])})


_WORDS: Final = FieldType(
    lambda value: is_text(value) and len(value) <= MAX_TEXT_CHARS and value.isprintable(), "a short text of one line"
)
"""Logs and terminals show these texts, and any writer of the bucket can write a lock."""
_RUN: Final = re.compile(r"[0-9a-f]{32}")
"""Folder names and job IDs are made of it, and any writer of the bucket can write a lock."""
_KINDS: Final = {
    "operation": _WORDS,
    "run": FieldType(lambda value: is_text(value) and _RUN.fullmatch(value) is not None, "32 hexadecimal digits"),
    "phase": _WORDS,
    "holder": _WORDS,
    "token": _WORDS,
    "since": MOMENT,
    "until": MOMENT,
    "heartbeat_s": FieldType(lambda value: is_number(value) and 0 < value <= _MAX_HEARTBEAT_S, "a number of seconds"),
    "state": one_of(LockState),
    "details": OBJECT,
    "after": _WORDS,
    "counter": COUNT,
}


@dataclass(frozen=True)
class FoundLock:
    """A lock as it was read or written.

    Attributes:
        tag: The object's tag, which the next swap must find.
        age_s: Time since the write, by the store's own clock.
    """

    marker: LockRecord
    tag: str
    age_s: float

    @property
    def is_held(self) -> bool:
        """Whether a command is changing the cluster."""
        return self.marker.state is LockState.HELD and self.age_s <= self.marker.times.stale_s

    @property
    def is_interrupted(self) -> bool:
        """Whether an operation ended early and left something half-done."""
        is_half_done = self.marker.state is not LockState.DONE and self.marker.operation not in _SINGLE_ACTS
        return is_half_done and not self.is_held

    def sentence(self, cluster: str, now: float) -> str:
        """Describe the operation on ``cluster`` and its earliest end, by a clock that says ``now``."""
        marker = self.marker
        since = f"since {format_time(marker.since)}"
        if self.is_held:
            until = format_time(now + marker.times.stale_s - self.age_s)
            return (
                f"Cluster {cluster}: {marker.holder} is at {marker.operation} {since}, phase {marker.phase}, and holds "
                f"the cluster until {until} at least."
            )
        ended = "is done" if marker.state is LockState.DONE else "was interrupted"
        return f"Cluster {cluster}: {marker.operation} by {marker.holder} {since} {ended} in phase {marker.phase}."


class ClusterBusyError(FleetError):
    """Another command is changing the cluster; the message names its user and the end of its lock."""


class InterruptedOperationError(FleetError):
    """Another operation on the cluster ended early."""


class MarkerLostError(FleetError):
    """This process has lost the cluster lock, so it may not change anything more."""


ClusterLockLostError = MarkerLostError


class ClusterLock:
    """The lock of one cluster.

    Args:
        cluster: Its name, for messages.
        path: Path of the object; see ``lock_path``.
        now: The time, for display; no decision depends on it.
        clock: Seconds that continue during sleep; a holder measures the age of its renewal with it.
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
        """Return the lock of a cluster of the fleet."""
        return ClusterLock(cluster.name, lock_path(cluster))

    def read(self) -> FoundLock | None:
        """Read the lock; None if no command ever changed the cluster.

        Raises:
            StoreError: The store refuses or does not answer.
            BadRecordError: The lock is invalid.
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
        """Take the lock for ``operation``, which begins with ``phase`` or resumes where it was interrupted.

        Args:
            holder: Name of the holder; default: this user on this machine.
            details: Data for a resumption, if the operation begins.
            is_anew: Begin, even if an operation was interrupted.

        Raises:
            ClusterBusyError: Another command holds it.
            InterruptedOperationError: Another operation was interrupted.
            StoreError: The store refuses or does not answer. If it wrote the lock all the same, that is stale soon.
            BadRecordError: The lock is invalid.
        """
        over = self.read()
        if over is not None and over.is_held:
            raise self._busy(over)
        now, who = self.now(), on_one_line(holder or this_user())[:MAX_TEXT_CHARS]  # a longer text fails parsing
        is_resumed = over is not None and over.is_interrupted and not is_anew
        if over is not None and is_resumed:
            if over.marker.operation != operation:
                raise InterruptedOperationError(
                    f"{over.sentence(self.cluster, now)} Run '{over.marker.operation}' again to resume it, or "
                    "abandon it."
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
        """Replace the object that has the tag ``expected`` by ``marker``; return None if its tag differs."""
        stored = self._write(self.path, marker.to_json(), expected)
        return None if stored is None else FoundLock(marker, stored.tag, stored.age_s)

    def _busy(self, found: FoundLock | None) -> ClusterBusyError:
        if found is None or not found.is_held:
            return ClusterBusyError(f"Cluster {self.cluster}: another command has just changed it. Try again.")
        return ClusterBusyError(f"{found.sentence(self.cluster, self.now())} Nothing was done: try again then.")


class HeldClusterLock:
    """A cluster lock that this process holds. A ``with`` block renews it and, unless done, releases it at the end.

    The holder calls ``check`` before each change to the cluster.
    """

    def __init__(self, store: ClusterLock, found: FoundLock, renewed_at: float, *, is_resumed: bool) -> None:
        self.is_resumed = is_resumed
        """Whether this resumes an interrupted operation."""
        self._store = store
        self._found = found
        self._renewed_at = renewed_at
        self._is_lost = False
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew_in_time, daemon=True, name="cluster-marker")

    @property
    def marker(self) -> LockRecord:
        """The lock's content as of the last write."""
        return self._found.marker

    @property
    def ends_at(self) -> float:
        """End of the time in which the cluster may be changed, by the boot clock; 0 if that is over. Reads no store."""
        if self._is_lost or self.marker.state is not LockState.HELD:
            return 0.0
        return self._renewed_at + self.marker.times.fence_s

    @property
    def killed_at(self) -> float:
        """When every process that was started under the lock must have ended, by the same clock."""
        return self._renewed_at + self.marker.times.kill_s

    @property
    def is_held(self) -> bool:
        """Whether the cluster may be changed; reads no store."""
        return self._store.clock() < self.ends_at

    def check(self) -> None:
        """Check that the cluster may still be changed.

        Raises:
            MarkerLostError: Another command may hold the lock by now.
        """
        if not self.is_held:
            raise MarkerLostError(
                f"Cluster {self._store.cluster}: {self._store.path} could not be renewed in time, so another command "
                f"may be changing the cluster. Check its status, then run '{self.marker.operation}' again."
            )

    def advance(self, phase: str, **details: Any) -> None:
        """Begin ``phase``; ``details`` replace those of the same names.

        Raises:
            MarkerLostError: This process has lost the lock.
            StoreError: The store has refused or not answered for too long.
        """
        self._write(phase=phase, details={**self.marker.details, **details})

    def finish(self) -> None:
        """Record that the operation is done. Raises the errors of ``advance``."""
        try:
            self._write(state=LockState.DONE)
        except MarkerLostError:
            found = self._store.read()
            if found is None or found.marker.after != self.marker.token:  # else the write succeeded unanswered
                raise
        self._over.set()

    def renew(self) -> None:
        """Renew the lock. Raises the errors of ``advance``, those of the store at once."""
        with self._lock:
            self._change()

    def leave(self) -> None:
        """Release the lock at once, before the operation is done; does nothing if it is done or the lock is lost."""
        if self.is_held:
            try:
                with self._lock:
                    self._change(state=LockState.LEFT)
            except (MarkerLostError, StoreError) as failure:
                _warn(f"{self._store.path} was not released, so it is held until it is stale ({failure}).")

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
        """Write the lock's next value. An earlier write of this process without an answer counts as its own."""
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
                _warn(f"{self._store.path} cannot be renewed ({error}). Retrying until the lock is too old.")


def lock_path(cluster: FleetCluster) -> str:
    """Return the path of the lock of ``cluster``."""
    return f"gs://{cluster.bucket}/.tradewind/clusters/{cluster.name}/marker.json"


def this_user() -> str:
    """Return the name of this user and machine, for display to others."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user of a container without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _warn(message: str) -> None:
    print(f"tradewind: {on_one_line(message)}", file=sys.stderr, flush=True)
