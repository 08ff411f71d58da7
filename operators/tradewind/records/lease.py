"""The lease beside an output: whose turn it is, and the only point at which an attempt becomes a result.

A lease is a value. Every change of it is a new value with a higher counter, which ``lease_store`` writes by
compare-and-swap; so a write counts only if nobody else has written since the lease was read. Its file,
``.executor_status.lock``, is the one that Marin's executor uses: the fields ``worker_id`` and ``timestamp`` are those
that it reads, and a lease without a phase is one of Marin's.

A file that is no lease, cut off or of a form that this version does not know, becomes a lease with a ``flaw``. Nobody
can say whose turn it is there, so it is neither written over nor taken for any end of a turn.
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

# When what happens under a lease: the one place where looking, fencing and taking over are weighed against each other.
#
# All of it counts from the last renewal, from when its owner *began* to write it: others count from when the store took
# it, which is later. Whoever works under a lease is cut off before others may take it over, by so much that a look that
# comes late, a polite end that takes its grace and a frozen process all fit between:
#
# ====================  ======================================================================================
# 0                     the owner renews
# ``heartbeat_s``       it renews again
# ``fence_s``           cut off: the owner writes nothing more; what works for it is killed, without any grace
# ``killed_s``          the kernel ends whoever of them was frozen and could not do that itself
# ``stale_s``           somebody else may take over
# ====================  ======================================================================================

HEARTBEAT_S: Final = 30.0
"""How often an owner renews, unless the deployment says otherwise; Marin's figure, as are 2 and 3 heartbeats."""
_FENCE_HEARTBEATS: Final = 2.0
_KILL_HEARTBEATS: Final = 2.5
_STALE_HEARTBEATS: Final = 3.0
_LOOKS_PER_HEARTBEAT: Final = 6
_LONGEST_LOOK_S: Final = 5.0
_LONGEST_CUT_S: Final = 0.25


@dataclass(frozen=True)
class LeaseTimes:
    """The times of a lease that is renewed every ``heartbeat_s`` seconds."""

    heartbeat_s: float = HEARTBEAT_S

    @property
    def poll_s(self) -> float:
        """How often its owner looks at it, for a request to stop or a loss."""
        return min(_LONGEST_LOOK_S, self.heartbeat_s / _LOOKS_PER_HEARTBEAT)

    @property
    def fence_poll_s(self) -> float:
        """How often whoever may be cut off looks at the clock, at most."""
        return min(_LONGEST_CUT_S, self.heartbeat_s / _LOOKS_PER_HEARTBEAT)

    @property
    def fence_s(self) -> float:
        """After so long without a renewal its owner ends itself."""
        return _FENCE_HEARTBEATS * self.heartbeat_s

    @property
    def kill_s(self) -> float:
        """After so long nothing of its owner is at work any more."""
        return _KILL_HEARTBEATS * self.heartbeat_s

    @property
    def stale_s(self) -> float:
        """After so long without a change somebody else may take over."""
        return _STALE_HEARTBEATS * self.heartbeat_s


LEASE_FILE: Final = ".executor_status.lock"


class Phase(Enum):
    """How far an attempt has come."""

    CLAIMED = "claimed"
    """Its job may be submitted. Whoever follows the job renews the lease."""
    RUNNING = "running"
    """Its keeper is at work, and nobody else renews."""
    COMMITTED = "committed"
    """The output is a result."""
    FAILED = "failed"
    """The function failed; the attempt's file says how."""
    STOPPED = "stopped"
    """It ended without a result and without a fault of the function: stopped by a person, or lost."""


LIVE_PHASES: Final = frozenset({Phase.CLAIMED, Phase.RUNNING})


@dataclass(frozen=True)
class Lease:
    """What the lease's file holds.

    Attributes:
        worker_id: Unique for each claim.
        timestamp: When it was written, by the clock of the writer: for people and for Marin, never for a judgement.
        phase: None for a lease of Marin's.
        attempt: The number of the attempt.
        job: The id of its Ray job; empty outside Ray.
        cluster: The cluster that the job was given to; empty outside any.
        by: Who claimed it: dag, run, task, map_index, try and max_tries, or the script or the hook.
        version: The whole MD5 of the version text, of which the output path holds six digits.
        heartbeat_s: How often its owner renews it; ``times`` count in it.
        incarnation: The keeper that made it ``running``.
        digest: The SHA-256 of the manifest, once committed.
        witness: One file of the output, relative to it, whose absence says that the output is gone.
        stop_requested: Who asked the keeper to stop, as in ``by``.
        removing: Who is about to remove this result; for one lease's term it is neither read nor reused.
        counter: Raised by every write.
        flaw: Why the file cannot be read, in words that follow "because"; the other fields mean nothing then. It is
            not written.
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
        """Whether it says that somebody is at work, now or when it was last written; so may one that has a flaw."""
        return self.phase is None or self.phase in LIVE_PHASES

    @property
    def times(self) -> LeaseTimes:
        """When what happens."""
        return LeaseTimes(self.heartbeat_s)

    @property
    def fence_s(self) -> float:
        """After so long without a renewal its owner ends itself."""
        return self.times.fence_s

    @property
    def stale_s(self) -> float:
        """After so long without a change somebody else may take over."""
        return self.times.stale_s

    def renewed(self, now: float, **changes: Any) -> Lease:
        """The next value of this lease, with ``changes``."""
        return replace(self, timestamp=now, counter=self.counter + 1, **changes)

    def is_same_attempt(self, other: Lease) -> bool:
        """Whether ``other`` is a state of the same attempt under the same keeper."""
        mine = (self.worker_id, self.attempt, self.job, self.incarnation)
        return mine == (other.worker_id, other.attempt, other.job, other.incarnation)

    def to_json(self) -> str:
        fields = asdict(self) | {"phase": self.phase.value if self.phase else None}
        del fields["flaw"], fields["flawed_file"]
        return json.dumps(fields)

    @staticmethod
    def as_unreadable(flaw: str, file: str = LEASE_FILE) -> Lease:
        """The lease of an output where ``file`` cannot be read, so that nobody can say whose turn it is."""
        return Lease(worker_id="", timestamp=0.0, flaw=flaw, flawed_file=file)

    @staticmethod
    def of(found: Content | StoredObject) -> Lease:
        """The lease in a file as it was found; it has a ``flaw`` if it cannot be read."""
        return Lease.from_json(found.text) if found.flaw is None else Lease.as_unreadable(found.flaw)

    @staticmethod
    def from_json(text: str) -> Lease:
        """The lease in a file's text; it has a ``flaw`` if it cannot be read."""
        try:
            known = parse_fields(parse_object(text), _KINDS, ("worker_id", "timestamp"))
        except RecordFormatError as flaw:
            return Lease.as_unreadable(str(flaw))
        phase = known.get("phase")
        return Lease(**{**known, "phase": None if phase is None else Phase(phase)})


def lease_path(output_path: str) -> str:
    """Where the lease of ``output_path`` lies."""
    return posixpath.join(output_path, LEASE_FILE)


def new_owner_id() -> str:
    """A worker id that nobody else has."""
    return uuid.uuid4().hex


_DAY_S: Final = 86_400
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
"""What each field may hold. A later version's further fields are passed over, its further phases are not."""

# A lease whose file cannot be read blocks its output until a person has looked at it.
#
# It may be somebody's turn, or a result: whoever guessed could let two write at once, or take half an output for a
# whole.


class UnreadableLeaseError(RecordsError):
    """The lease of an output cannot be read, so nothing is made, reused or removed there."""

    def __init__(self, output_path: str, lease: Lease) -> None:
        file = posixpath.join(output_path, lease.flawed_file)
        what = "lease" if lease.flawed_file == LEASE_FILE else "status"
        super().__init__(
            f"The {what} {file} cannot be read, because {lease.flaw}: whose turn it is there cannot be said, so "
            "nothing is made, reused or removed. If a newer Tradewind wrote it, update this one; else, when nobody is "
            f"at work there, remove it with `{_removal(file)}`."
        )


def check_readable(output_path: str, lease: Lease | None) -> None:
    """Refuse to go on where the lease cannot be read.

    Raises:
        UnreadableLeaseError: It cannot.
    """
    if lease is not None and lease.flaw is not None:
        raise UnreadableLeaseError(output_path, lease)


def _removal(file: str) -> str:
    at = Location.of(file)
    match at.scheme:
        case "gs":
            return f"gcloud storage rm {shlex.quote(f'gs://{at.bucket}/{at.name}')}"
        case "s3":
            return f"aws s3 rm {shlex.quote(f's3://{at.bucket}/{at.name}')}"
    return f"rm {shlex.quote(at.name)}"
