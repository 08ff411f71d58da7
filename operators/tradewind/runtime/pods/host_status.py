"""The driver's view of one host of a pod: its reports, its clock, and the evidence for an incident."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tradewind.runtime.pods.capacity.reservation import ReservedHost
from tradewind.runtime.pods.on_host.heartbeat import Beat
from tradewind.runtime.pods.on_host.host import Report
from tradewind.runtime.pods.process_env import HostProbe
from tradewind.runtime.pods.verdicts import NOTICED, Evidence, Incident

_MAX_LINES: Final = 200
_NO_ANSWER: Final = "its Ray worker did not answer"


@dataclass(frozen=True)
class HostClock:
    """A host's boot clock when it sent a report, and the driver's when it received it.

    The two clocks differ by any amount, and a message may take any time. But the host sent before the driver received,
    so a converted time is never too late. Hosts count their deadline from it.
    """

    sent_at: float
    received_at: float

    def at_least(self, moment: float) -> float:
        """Return the host's clock at ``moment`` of the driver's, or an earlier time."""
        return moment + self.sent_at - self.received_at


@dataclass
class HostStatus:
    """One host, as the driver sees it."""

    rank: int
    reserved: ReservedHost
    actor: Any
    evidence: Evidence
    """Determines the incident when the attempt ends."""
    probe: HostProbe | None = None
    answered_at: float = field(default_factory=time.monotonic)
    beat: Beat | None = None
    clock: HostClock | None = None
    """Its boot clock beside the driver's, as of its last answer."""
    exited_at: float | None = None
    preempted_by: float | None = None
    """When Google Cloud preempts it, in seconds since the epoch."""
    is_killed: bool = False
    """The driver killed its process, so its exit code means nothing."""
    wrong_at: float = math.inf

    @property
    def name(self) -> str:
        slice_name = self.reserved.node.slice_name
        return f"host {self.reserved.host} of slice {slice_name}" if slice_name else f"host {self.rank}"

    @property
    def has_exited(self) -> bool:
        return self.exited_at is not None

    @property
    def is_done(self) -> bool:
        return self.has_exited and self.evidence.exit_code == 0

    @property
    def stepped_at(self) -> float | None:
        """When its process finished the last reported step, on the boot clock; None before the first."""
        return None if self.beat is None or self.beat.step is None else self.beat.step_at

    @property
    def is_node_dead(self) -> bool:
        return self.evidence.is_node_alive is False

    @property
    def is_lost(self) -> bool:
        """The machine is gone or about to go."""
        return self.is_node_dead or self.evidence.is_node_draining or self.evidence.is_preempted

    @property
    def has_problem(self) -> bool:
        """The pod cannot continue with this host."""
        return self.wrong_at < math.inf

    @property
    def is_unresponsive(self) -> bool:
        """No further answer is expected."""
        return self.is_node_dead or (self.evidence.start_problem or "").startswith(_NO_ANSWER)

    def note(self, **evidence: Any) -> None:
        """Set these fields of its evidence."""
        self.evidence = replace(self.evidence, **evidence)

    def note_wrong(self, **evidence: Any) -> None:
        """Set these fields; if they are the host's first problem, note the time."""
        self.note(**evidence)
        seen = self.evidence
        may_exit_with = (0, NOTICED) if seen.has_notice else (0,)
        is_wrong = (
            (self.has_exited and seen.exit_code not in may_exit_with)
            or self.is_node_dead
            or seen.is_actor_lost
            or seen.is_cut_off
            or seen.silent_s is not None
            or seen.start_problem is not None
        )
        if is_wrong and not self.has_problem:
            self.wrong_at = time.monotonic()

    def note_no_answer(self, limit_s: float) -> None:
        """Note that the host did not answer a call before the start within ``limit_s``."""
        self.note_wrong(start_problem=f"{_NO_ANSWER} within {limit_s:.0f} s")

    def note_report(self, report: Report, now: float) -> None:
        """Note the host's own report; ``now`` is the driver's boot clock."""
        self.clock = HostClock(report.now, now)
        if report.beat is not None:
            self.beat = report.beat.on_clock(report.now, now)
        self.preempted_by = report.preempted_by or self.preempted_by
        lines = (*self.evidence.last_lines, *report.lines)[-_MAX_LINES:]
        self.note(last_lines=lines, is_preempted=self.preempted_by is not None)
        if report.is_node_dead:
            self.note(is_node_alive=False)
        elif report.was_ended and not self.has_exited and not self.is_killed:
            self.note(is_cut_off=True)
        elif report.exit_code is not None and not self.has_exited and not report.was_ended:
            self.note(exit_code=report.exit_code)
            self.exited_at = time.monotonic()
        self.note_wrong()

    def note_error(self, sent: Mapping[str, str] | None) -> None:
        """Note the exception of its process: the one that it sent, else the one that it printed."""
        code = self.evidence.exit_code
        self.note(error=sent or (error_in(self.evidence.last_lines) if code and code > 0 else None))

    def is_named_by(self, incident: Incident) -> bool:
        """Whether the incident names this host."""
        return (self.reserved.node.slice_name, self.reserved.host) == (incident.slice_name, incident.host)


def error_in(lines: Iterable[str]) -> Mapping[str, str] | None:
    """Return the last Python traceback in ``lines``, as type, message and text; None if there is none."""
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
