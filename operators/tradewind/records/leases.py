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
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Final

from tradewind.records.lease_times import HEARTBEAT_S as HEARTBEAT_S
from tradewind.records.lease_times import LeaseTimes

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


LIVE: Final = frozenset({Phase.CLAIMED, Phase.RUNNING})


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

    @property
    def is_marins(self) -> bool:
        """Whether Marin's executor wrote it."""
        return self.phase is None and self.flaw is None

    @property
    def is_live(self) -> bool:
        """Whether it says that somebody is at work, now or when it was last written; so may one that has a flaw."""
        return self.phase is None or self.phase in LIVE

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

    def is_same_turn(self, other: Lease) -> bool:
        """Whether ``other`` is a state of the same attempt under the same keeper."""
        mine = (self.worker_id, self.attempt, self.job, self.incarnation)
        return mine == (other.worker_id, other.attempt, other.job, other.incarnation)

    def to_json(self) -> str:
        fields = asdict(self) | {"phase": self.phase.value if self.phase else None}
        del fields["flaw"]
        return json.dumps(fields)

    @staticmethod
    def from_json(text: str) -> Lease:
        """The lease in a file's text; it has a ``flaw`` if it cannot be read."""
        try:
            text.encode()  # bytes that are no text came as surrogates
            fields = json.loads(text)
        except (ValueError, RecursionError):
            return _flawed("it holds no JSON" if text else "it is empty")
        if not isinstance(fields, dict):
            return _flawed("it holds no JSON object")
        known = {name: fields[name] for name in _CHECKS if name in fields}
        if missing := [name for name in ("worker_id", "timestamp") if name not in known]:
            return _flawed(f"it has no {missing[0]}")
        if wrong := [name for name, value in known.items() if not _CHECKS[name](value)]:
            return _flawed(f"its {wrong[0]} is {_shown(known[wrong[0]])}")
        phase = known.get("phase")
        return Lease(**{**known, "phase": None if phase is None else Phase(phase)})


def lease_path(output_path: str) -> str:
    """Where the lease of ``output_path`` lies."""
    return posixpath.join(output_path, LEASE_FILE)


def new_owner() -> str:
    """A worker id that nobody else has."""
    return uuid.uuid4().hex


def _flawed(flaw: str) -> Lease:
    return Lease(worker_id="", timestamp=0.0, flaw=flaw)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST  # NaN is not


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _or_null(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


_LONGEST_SHOWN: Final = 60
_LARGEST: Final = 1e300
"""Of what can still be counted in."""
_PHASES: Final = frozenset(phase.value for phase in Phase)
_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "worker_id": _is_text,
    "timestamp": _is_number,
    "phase": _or_null(lambda value: _is_text(value) and value in _PHASES),
    "attempt": _is_count,
    "job": _is_text,
    "cluster": _is_text,
    "by": _is_object,
    "version": _is_text,
    "heartbeat_s": lambda value: _is_number(value) and value > 0,
    "incarnation": _or_null(_is_text),
    "digest": _or_null(_is_text),
    "witness": _or_null(_is_text),
    "stop_requested": _or_null(_is_object),
    "removing": _or_null(_is_object),
    "counter": _is_count,
}
"""What each field may hold. A later version's further fields are passed over, its further phases are not."""
