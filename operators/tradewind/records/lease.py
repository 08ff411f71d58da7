"""The lease of an output: the exclusive right to write it, and the only way for an attempt to become a result.

A lease is a value. Each change makes a new value with a higher counter, which ``lease_store`` writes by
compare-and-swap; so a write counts only if no other process has written since the lease was read. Its file,
``.executor_status.lock``, is that of Marin's executor, which reads the fields ``worker_id`` and ``timestamp``; a lease
without a phase is one of Marin's.

A file that is incomplete, or in a form that this version does not know, becomes a lease with a ``flaw``. Its owner is
unknown, so no process overwrites it or takes it for the end of an attempt.

All times count from the last renewal, from when its owner *began* to write it; others count from when the store took
it, which is later. The processes of an owner end before another process may take over. The margins leave time for a
late poll, and for the kernel to kill a frozen process:

====================  ======================================================================================
0                     the owner renews
``heartbeat_s``       the owner renews again
``fence_s``           the owner writes nothing more; its processes are killed without a grace period
``kill_s``            the kernel kills those that were frozen and could not end themselves
``stale_s``           another process may take over
====================  ======================================================================================
"""

from __future__ import annotations

import json
import posixpath
import shlex
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Final

from tradewind.records.parsing import (
    COUNT,
    MOMENT,
    OBJECT,
    RELATIVE_PATH,
    TEXT,
    FieldType,
    RecordFormatError,
    is_number,
    one_of,
    parse_fields,
    parse_object,
)
from tradewind.storage import Location
from tradewind.storage.backends import StoredObject
from tradewind.storage.bounded_read import Content
from tradewind.storage.errors import RecordsError

LEASE_FILE: Final = ".executor_status.lock"
HEARTBEAT_S: Final = 30.0
"""Default seconds between an owner's renewals; Marin's figure, as are 2 and 3 heartbeats."""
_FENCE_HEARTBEATS: Final = 2.0
_KILL_HEARTBEATS: Final = 2.5
_STALE_HEARTBEATS: Final = 3.0
_POLLS_PER_HEARTBEAT: Final = 6
_MAX_POLL_S: Final = 5.0
_MAX_FENCE_POLL_S: Final = 0.25
_DAY_S: Final = 86_400


@dataclass(frozen=True)
class LeaseTimes:
    """Times of a lease that its owner renews every ``heartbeat_s`` seconds."""

    heartbeat_s: float = HEARTBEAT_S

    @property
    def poll_s(self) -> float:
        """Seconds between the owner's reads of the lease, for a stop request or its loss."""
        return min(_MAX_POLL_S, self.heartbeat_s / _POLLS_PER_HEARTBEAT)

    @property
    def fence_poll_s(self) -> float:
        """Seconds at most between two checks of the clock by a process that may be fenced."""
        return min(_MAX_FENCE_POLL_S, self.heartbeat_s / _POLLS_PER_HEARTBEAT)

    @property
    def fence_s(self) -> float:
        """Seconds without a renewal after which the owner ends itself."""
        return _FENCE_HEARTBEATS * self.heartbeat_s

    @property
    def kill_s(self) -> float:
        """Seconds without a renewal after which no process of the owner runs."""
        return _KILL_HEARTBEATS * self.heartbeat_s

    @property
    def stale_s(self) -> float:
        """Seconds without a change after which another process may take over."""
        return _STALE_HEARTBEATS * self.heartbeat_s


class Phase(Enum):
    """Progress of an attempt."""

    CLAIMED = "claimed"
    """Its job may be submitted. The process that follows the job renews the lease."""
    RUNNING = "running"
    """Its driver owns the lease; only the owner renews."""
    COMMITTED = "committed"
    """The output is a result."""
    FAILED = "failed"
    """The function failed; the attempt's file says how."""
    STOPPED = "stopped"
    """It ended without a result and without an error of the function: stopped by a user, or lost."""


LIVE_PHASES: Final = frozenset({Phase.CLAIMED, Phase.RUNNING})
_KINDS: Final[Mapping[str, FieldType]] = {
    "worker_id": TEXT,
    "timestamp": MOMENT,
    "phase": one_of(phase.value for phase in Phase).or_null(),
    "attempt": COUNT,
    "job": TEXT,
    "cluster": TEXT,
    "by": OBJECT,
    "version": TEXT,
    "heartbeat_s": FieldType(lambda value: is_number(value) and 0 < value <= _DAY_S, "a number above 0, a day at most"),
    "incarnation": TEXT.or_null(),
    "digest": TEXT.or_null(),
    "witness": RELATIVE_PATH.or_null(),
    "stop_requested": OBJECT.or_null(),
    "removing": OBJECT.or_null(),
    "counter": COUNT,
}
"""Type of each field. Unknown fields of a later version are ignored; unknown phases make the lease unreadable."""


@dataclass(frozen=True)
class Lease:
    """Content of the lease's file.

    Attributes:
        worker_id: Unique for each claim.
        timestamp: Time of the write by the writer's clock, for users and Marin; no decision depends on it.
        phase: None for a lease of Marin's.
        attempt: The number of the attempt.
        job: The submission ID of its Ray job; empty outside Ray.
        cluster: The cluster of that job; empty outside any.
        by: The claimer: dag, run, task, map_index, try and max_tries, or the script or the hook.
        version: The whole MD5 of the version text, of which the output path holds six digits.
        heartbeat_s: Seconds between its owner's renewals; ``times`` depend on it.
        incarnation: The owner that made it ``running``.
        digest: The SHA-256 of the manifest, once committed.
        witness: The sentinel file, relative to the output: if it is absent, the output is gone.
        stop_requested: The task or user that asked the owner to stop, as in ``by``.
        removing: The process that is about to remove this result, which no step reads or reuses for ``stale_s``.
        counter: Raised by every write.
        flaw: Why the file cannot be read, in words that follow "because". The other fields mean nothing then. Not
            written.
        flawed_file: The name of that file: the lease's own, or another that decides in its place.
    """

    worker_id: str
    timestamp: float
    phase: Phase | None = None
    attempt: int = 0
    job: str = ""
    cluster: str = ""
    by: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    heartbeat_s: float = HEARTBEAT_S
    incarnation: str | None = None
    digest: str | None = None
    witness: str | None = None
    stop_requested: Mapping[str, Any] | None = None
    removing: Mapping[str, Any] | None = None
    counter: int = 0
    flaw: str | None = None
    flawed_file: str = LEASE_FILE

    @property
    def written_by_marin(self) -> bool:
        """Whether Marin's executor wrote it."""
        return self.phase is None and self.flaw is None

    @property
    def is_live(self) -> bool:
        """Whether an attempt runs by this lease, now or when it was last written; also true for one with a flaw."""
        return self.phase is None or self.phase in LIVE_PHASES

    @property
    def times(self) -> LeaseTimes:
        """The times of this lease."""
        return LeaseTimes(self.heartbeat_s)

    @property
    def fence_s(self) -> float:
        """Seconds without a renewal after which the owner ends itself."""
        return self.times.fence_s

    @property
    def stale_s(self) -> float:
        """Seconds without a change after which another process may take over."""
        return self.times.stale_s

    def renewed(self, now: float, **changes: Any) -> Lease:
        """Return the next value of this lease, with ``changes``."""
        return replace(self, timestamp=now, counter=self.counter + 1, **changes)

    def is_same_attempt(self, other: Lease) -> bool:
        """Whether ``other`` is a state of the same attempt with the same owner."""
        mine = (self.worker_id, self.attempt, self.job, self.incarnation)
        return mine == (other.worker_id, other.attempt, other.job, other.incarnation)

    @property
    def why_unreadable(self) -> str:
        """Return a sentence that says which file has the flaw, and what it is."""
        what = "lease" if self.flawed_file == LEASE_FILE else "status"
        return (
            f"The {what} {self.flawed_file} cannot be read, because {self.flaw}; a later version may have written it."
        )

    def to_json(self) -> str:
        fields = asdict(self) | {"phase": self.phase.value if self.phase else None}
        del fields["flaw"], fields["flawed_file"]
        return json.dumps(fields)

    @staticmethod
    def as_unreadable(flaw: str, file: str = LEASE_FILE) -> Lease:
        """Return the lease of an output whose ``file`` cannot be read, so that its owner is unknown."""
        return Lease(worker_id="", timestamp=0.0, flaw=flaw, flawed_file=file)

    @staticmethod
    def of(content: Content | StoredObject) -> Lease:
        """Return the lease in a file's content, with a ``flaw`` if it cannot be read."""
        return Lease.from_json(content.text) if content.flaw is None else Lease.as_unreadable(content.flaw)

    @staticmethod
    def from_json(text: str) -> Lease:
        """Return the lease in a file's text, with a ``flaw`` if it cannot be read."""
        try:
            known = parse_fields(parse_object(text), _KINDS, ("worker_id", "timestamp"))
        except RecordFormatError as flaw:
            return Lease.as_unreadable(str(flaw))
        phase = known.get("phase")
        return Lease(**{**known, "phase": None if phase is None else Phase(phase)})


def lease_path(output_path: str) -> str:
    """Return the path of the lease of ``output_path``."""
    return posixpath.join(output_path, LEASE_FILE)


def new_owner_id() -> str:
    """Return a new, unique worker ID."""
    return uuid.uuid4().hex


class UnreadableLeaseError(RecordsError):
    """The lease of an output cannot be read, so nothing is made, reused or removed there.

    It may belong to a running attempt, or commit a result. By a guess, two processes could write at once, or half an
    output could count as a result. So it blocks the output until a user has looked at it.
    """

    def __init__(self, output_path: str, lease: Lease) -> None:
        file = posixpath.join(output_path, lease.flawed_file)
        what = "lease" if lease.flawed_file == LEASE_FILE else "status"
        super().__init__(
            f"The {what} {file} cannot be read, because {lease.flaw}. The owner of the output is unknown, so nothing "
            "is made, reused or removed there. If a newer Tradewind wrote the file, update this one. Otherwise, if no "
            f"attempt is at work there, remove it with `{_removal(file)}`."
        )


def check_readable(output_path: str, lease: Lease | None) -> None:
    """Check that the lease, if there is one, can be read.

    Raises:
        UnreadableLeaseError: The lease cannot be read.
    """
    if lease is not None and lease.flaw is not None:
        raise UnreadableLeaseError(output_path, lease)


def _removal(file: str) -> str:
    """Return the shell command that removes ``file``."""
    at = Location.of(file)
    match at.scheme:
        case "gs":
            return f"gcloud storage rm {shlex.quote(f'gs://{at.bucket}/{at.name}')}"
        case "s3":
            return f"aws s3 rm {shlex.quote(f's3://{at.bucket}/{at.name}')}"
    return f"rm {shlex.quote(at.name)}"
