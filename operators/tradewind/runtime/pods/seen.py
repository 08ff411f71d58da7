"""What the driver has seen of one host of a pod, and the evidence that it makes."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.runtime.pods.environment import HostFacts
from tradewind.runtime.pods.heartbeat import Beat
from tradewind.runtime.pods.host import Report
from tradewind.runtime.pods.host_clock import HostClock
from tradewind.runtime.pods.reservation import Seat
from tradewind.runtime.pods.verdicts import NOTICED, Evidence, Incident

_LINES: Final = 200
_NO_ANSWER: Final = "its Ray worker did not answer"


@dataclass
class SeenHost:
    """One host, as it looks from the driver."""

    rank: int
    seat: Seat
    actor: Any
    facts: HostFacts | None = None
    answered_at: float = field(default_factory=time.monotonic)
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES))
    beat: Beat | None = None
    clock: HostClock | None = None
    """Its boot clock beside ours, as it was last heard."""
    exit_code: int | None = None
    over_at: float | None = None
    actor_lost: bool = False
    node_dead: bool = False
    draining: bool = False
    preempted_by: float | None = None
    noticed: bool = False
    killed: bool = False
    """We ended its process, so that its exit code tells nothing."""
    cut_off: bool = False
    silent_s: float | None = None
    start_problem: str | None = None
    wrong_at: float = math.inf

    @property
    def name(self) -> str:
        slice_name = self.seat.node.slice_name
        return f"host {self.seat.host} of slice {slice_name}" if slice_name else f"host {self.rank}"

    @property
    def over(self) -> bool:
        return self.over_at is not None

    @property
    def done(self) -> bool:
        return self.over and self.exit_code == 0

    @property
    def stepped_at(self) -> float | None:
        """When its process had done the step that it told of last, on the boot clock; None before the first."""
        return None if self.beat is None or self.beat.step is None else self.beat.step_at

    @property
    def preempted(self) -> bool:
        return self.preempted_by is not None

    @property
    def is_lost(self) -> bool:
        """The machine is gone or about to go."""
        return self.node_dead or self.draining or self.preempted

    @property
    def is_wrong(self) -> bool:
        """The pod cannot go on with this host."""
        return self.wrong_at < math.inf

    def note_wrong(self) -> None:
        """If something is wrong by now, it is since now."""
        ended_badly = self.over and self.exit_code not in (0, NOTICED if self.noticed else 0)
        wrong = (
            ended_badly
            or self.node_dead
            or self.actor_lost
            or self.cut_off
            or self.silent_s is not None
            or self.start_problem
        )
        if wrong and not self.is_wrong:
            self.wrong_at = time.monotonic()

    def unanswered(self, limit_s: float) -> None:
        """It was asked to start, and said nothing for so long."""
        self.start_problem = f"{_NO_ANSWER} within {limit_s:.0f} s"
        self.note_wrong()

    @property
    def is_unanswered(self) -> bool:
        return self.start_problem is not None and self.start_problem.startswith(_NO_ANSWER)

    @property
    def is_mute(self) -> bool:
        """Nothing more is to be expected of it."""
        return self.node_dead or self.is_unanswered

    def take(self, report: Report, now: float) -> None:
        """Note what the host itself said."""
        self.clock = HostClock(report.now, now)
        self.last_lines.extend(report.lines)
        if report.beat is not None:
            self.beat = report.beat.on_clock(report.now, now)
        self.preempted_by = report.preempted_by or self.preempted_by
        if report.lost:
            self.node_dead = True
        elif report.was_ended and not self.over and not self.killed:
            self.cut_off = True
        elif report.exit_code is not None and not self.over and not report.was_ended:
            self.exit_code, self.over_at = report.exit_code, time.monotonic()
        self.note_wrong()

    def evidence(self, slice_type: str, num_hosts: int, error: Mapping[str, str] | None) -> Evidence:
        return Evidence(
            host=self.seat.host,
            slice_name=self.seat.node.slice_name,
            slice_type=slice_type,
            num_hosts=num_hosts,
            exit_code=self.exit_code,
            actor_lost=self.actor_lost,
            node_alive=not self.node_dead,
            node_draining=self.draining,
            metadata_preempted=self.preempted,
            noticed=self.noticed,
            cut_off=self.cut_off,
            silent_s=self.silent_s,
            start_problem=self.start_problem,
            error=error or self._printed_error(),
            last_lines=tuple(self.last_lines),
        )

    def _printed_error(self) -> Mapping[str, str] | None:
        """The traceback with which its process ended, from what it printed."""
        return error_in(self.last_lines) if self.exit_code and self.exit_code > 0 else None

    def is_the_one(self, incident: Incident) -> bool:
        """Whether the incident tells of this host."""
        return (self.seat.node.slice_name, self.seat.host) == (incident.slice_name, incident.host)


def error_in(lines: Iterable[str]) -> Mapping[str, str] | None:
    """The last Python traceback in ``lines``, as type, message and text; None if there is none."""
    printed = list(lines)
    begins = [at for at, line in enumerate(printed) if line.startswith("Traceback (most recent call last):")]
    if not begins:
        return None
    for at in range(begins[-1] + 1, len(printed)):
        if printed[at] and not printed[at][0].isspace():
            kind, _, message = printed[at].partition(": ")
            text = "\n".join(printed[begins[-1] : at + 1]) + "\n"
            return {"type": kind.rpartition(".")[2], "message": message, "traceback": text}
    return None
