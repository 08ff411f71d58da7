"""What the marker of a cluster says: who does what to it, how far that has come, and when it was written."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from tradewind.records.leases.times import HEARTBEAT_S, LeaseTimes
from tradewind.records.parsing import (
    COUNT,
    MOMENT,
    OBJECT,
    Flaw,
    Kind,
    is_number,
    is_text,
    known_fields,
    one_of,
    parse_object,
)
from tradewind.storage.backends import Stored
from tradewind.storage.errors import BadRecordError

_LONGEST_HEARTBEAT_S: Final = 3600.0
LONGEST_WORDS: Final = 300
ADD_WORKER: Final = "add-worker"
REMOVE_WORKER: Final = "remove-worker"
PUSH_ENV: Final = "push-env"
_SINGLE_ACTS: Final = frozenset({ADD_WORKER, REMOVE_WORKER, PUSH_ENV})
"""Operations that nobody has to go on with: what they do to a slice or host is done or not."""


class MarkerState(StrEnum):
    """What a marker says of its operation."""

    HELD = "held"
    """Somebody is at it, if the marker is not stale."""
    LEFT = "left"
    """It ended before it was done, and said so."""
    DONE = "done"
    """It is done: anybody may begin the next one."""


@dataclass(frozen=True)
class Marker:
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
    state: MarkerState = MarkerState.HELD
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
        over: Marker | None,
    ) -> Marker:
        """That of a new run of ``operation``, which replaces ``over``."""
        run, token, until = uuid.uuid4().hex, uuid.uuid4().hex, now + LeaseTimes(heartbeat_s).stale_s
        after = over.token if over and over.state is MarkerState.DONE else ""
        begun = Marker(operation, run, phase, holder, token, now, until, heartbeat_s, details=details, after=after)
        return replace(begun, counter=over.counter + 1 if over else 1)

    def resumed(self, now: float, holder: str, heartbeat_s: float) -> Marker:
        """That of ``holder``, who goes on with the same run."""
        token = uuid.uuid4().hex
        other = replace(self, holder=holder, token=token, heartbeat_s=heartbeat_s, state=MarkerState.HELD, after="")
        return other.changed(now)

    def changed(self, now: float, **changes: Any) -> Marker:
        """The next value of it."""
        return replace(self, until=now + self.times.stale_s, counter=self.counter + 1, **changes)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of(stored: Stored, path: str) -> Marker:
        """The marker in an object as it was read.

        Raises:
            BadRecordError: It is none. Nobody can say whether the cluster is being changed.
        """
        try:
            if stored.flaw is not None:
                raise Flaw(stored.flaw)
            known = known_fields(parse_object(stored.text), _KINDS, _KINDS)
        except Flaw as flaw:
            advice = "Make sure that nobody starts, stops or restarts the cluster, and remove it."
            raise BadRecordError(path, str(flaw), advice) from None
        return Marker(**{**known, "state": MarkerState(known["state"])})


_WORDS: Final = Kind(
    lambda value: is_text(value) and len(value) <= LONGEST_WORDS and value.isprintable(), "a short text of one line"
)
"""People are told them, in logs and on terminals, and whoever can write the bucket can write a marker."""
_RUN: Final = re.compile(r"[0-9a-f]{32}")
"""The names of folders and the ids of jobs are made of it, and whoever can write the bucket can write a marker."""
_KINDS: Final = {
    "operation": _WORDS,
    "run": Kind(lambda value: is_text(value) and _RUN.fullmatch(value) is not None, "32 hexadecimal digits"),
    "phase": _WORDS,
    "holder": _WORDS,
    "token": _WORDS,
    "since": MOMENT,
    "until": MOMENT,
    "heartbeat_s": Kind(lambda value: is_number(value) and 0 < value <= _LONGEST_HEARTBEAT_S, "a number of seconds"),
    "state": one_of(MarkerState),
    "details": OBJECT,
    "after": _WORDS,
    "counter": COUNT,
}


@dataclass(frozen=True)
class FoundMarker:
    """A marker as it was read or written.

    Attributes:
        tag: What the next swap must find.
        age_s: How long ago it was written, by the store's own clock.
    """

    marker: Marker
    tag: str
    age_s: float

    @property
    def is_held(self) -> bool:
        """Whether somebody is changing the cluster."""
        return self.marker.state is MarkerState.HELD and self.age_s <= self.marker.times.stale_s

    @property
    def is_interrupted(self) -> bool:
        """Whether an operation has ended before it was done, and left something half-done."""
        is_half_done = self.marker.state is not MarkerState.DONE and self.marker.operation not in _SINGLE_ACTS
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
        ended = "is done" if marker.state is MarkerState.DONE else "was interrupted"
        return f"Cluster {cluster}: {marker.operation} by {marker.holder} {since} {ended} in phase {marker.phase}."


def _clock_time(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment))
