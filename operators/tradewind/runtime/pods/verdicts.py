"""Determine the incident that ended an attempt: a preemption or a failure, which have different budgets.

``determine_incident`` is the table of the documentation. Any loss of a node is a preemption. A preemption of one host
wins over failures of the others, which may only result from their lost peer. Everything else is a failure: a wrong
"failure" ends the pod soon with a reason, a wrong "preemption" repeats a million times. Nothing here calls Ray, a
process or a clock.
"""

from __future__ import annotations

import enum
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tradewind.runtime.pods.process_env import format_exit

NOTICED: Final = 76
"""Exit code of a process that saved a checkpoint because of a notice and then exited."""

_KILLED: Final = -9
_NOT_FOUND: Final = 127
_LOST_PEER: Final = re.compile(
    r"connection (reset|refused|closed)|broken pipe|socket closed|coordination service|barrier (timed out|failed)"
    r"|heartbeat (timeout|timed out)|\bgloo\b|\bnccl\b|megascale|UNAVAILABLE:|DEADLINE_EXCEEDED"
    r"|peer .{0,200}(died|lost|gone)|unhealthy|another task died",
    re.IGNORECASE,
)


class Cause(enum.Enum):
    """Why an attempt ended. Timelines and logs have the values."""

    NODE_DIED = "node died"
    """The Ray node is gone with its actor and processes: a preemption."""
    DRAINED = "node drained"
    """The notice watcher or a user made Ray drain the node: a preemption."""
    PREEMPTED = "preempted"
    """The instance metadata announced it: a preemption."""
    NOTICED = "checkpoint on notice"
    """The process saved a checkpoint because of a notice and exited: a preemption."""
    CUT_OFF = "cut off"
    """The host had no call of its driver for too long, and killed its process: a preemption."""
    EXCEPTION = "exception"
    """The function raised: a failure."""
    EXITED = "exit code"
    """The process exited with another code than 0 and without an exception: a failure."""
    KILLED = "killed"
    """A signal killed the process on a live node: a failure, most often out of memory."""
    SILENT = "silent"
    """The process is frozen, or has made no step for too long: a failure."""
    ACTOR_LOST = "actor lost"
    """Ray lost the worker of the process on a live node: a failure."""
    CANNOT_START = "cannot start"
    """The command could not be started: a failure."""

    @property
    def is_preemption(self) -> bool:
        return self in _PREEMPTIONS


_PREEMPTIONS: Final = frozenset({Cause.NODE_DIED, Cause.DRAINED, Cause.PREEMPTED, Cause.NOTICED, Cause.CUT_OFF})


@dataclass(frozen=True)
class Evidence:
    """Facts about one host, before the pod was ended."""

    host: int
    """Its rank within its slice."""
    slice_name: str | None
    slice_type: str
    num_hosts: int
    """How many hosts the whole pod has."""
    exit_code: int | None = None
    """As in ``subprocess``; None while the process runs or if unknown."""
    is_actor_lost: bool = False
    is_node_alive: bool | None = None
    """None without an answer from Ray."""
    is_node_draining: bool = False
    is_preempted: bool = False
    has_notice: bool = False
    """The process received a notice."""
    is_cut_off: bool = False
    """The host killed the process because its driver did not call."""
    silent_s: float | None = None
    """How long the process has been frozen or without a step, if that is too long."""
    start_problem: str | None = None
    error: Mapping[str, str] | None = None
    """``type``, ``message`` and ``traceback`` of the process's exception."""
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Incident:
    """Why an attempt ended, in one sentence, and on which host."""

    cause: Cause
    sentence: str
    slice_name: str | None = None
    host: int | None = None
    exit_code: int | None = None
    traceback: str | None = None
    last_lines: tuple[str, ...] = ()


def determine_incident(evidence: Evidence, others: Sequence[Evidence] = ()) -> Incident:
    """Return why the attempt ended, from the evidence of the host with the first problem and of ``others``.

    Raises ValueError if nothing is wrong with any of them.
    """
    hosts = [evidence, *others]
    has_notice = any(host.has_notice or host.is_node_draining or host.is_preempted for host in hosts)
    problems = [(host, *problem) for host in hosts if (problem := _problem_of(host, has_notice)) is not None]
    if not problems:
        raise ValueError("Nothing is wrong with any host of the pod.")
    host, cause, reason = min(problems, key=lambda problem: _order(problem[0], problem[1]))
    return Incident(
        cause=cause,
        sentence=_sentence(host, reason),
        slice_name=host.slice_name,
        host=host.host,
        exit_code=host.exit_code,
        traceback=host.error.get("traceback") if host.error else None,
        last_lines=host.last_lines,
    )


def was_aborted(evidence: Evidence) -> bool:
    """Whether SIGABRT ended a process with peers, as JAX does when a peer is lost."""
    return evidence.exit_code == -signal.SIGABRT and evidence.num_hosts > 1


def may_be_a_lost_peer(evidence: Evidence) -> bool:
    """Whether the host's exception, or JAX's SIGABRT, may only result from the loss of another host."""
    if was_aborted(evidence):
        return True
    return evidence.error is not None and bool(_LOST_PEER.search(evidence.error.get("message", "")))


def _order(host: Evidence, cause: Cause) -> int:
    """Return the sort key: preemptions first, possible consequences of a lost peer last."""
    if cause.is_preemption:
        return 1 if cause is Cause.NOTICED else 0
    return 3 if may_be_a_lost_peer(host) else 2


def _problem_of(host: Evidence, has_notice: bool) -> tuple[Cause, str] | None:
    """Return the first row of the table that fits. ``has_notice``: some host of the pod had a notice."""
    if host.is_preempted:
        return Cause.PREEMPTED, "was preempted"
    if host.is_node_alive is False:
        return Cause.NODE_DIED, "was lost: its Ray node died"
    if host.is_node_draining:
        return Cause.DRAINED, "is being drained: its Ray node is about to go"
    if host.is_cut_off:
        return Cause.CUT_OFF, "heard nothing of its driver for too long or was frozen itself, and ended its process"
    if host.exit_code == NOTICED and has_notice:
        return Cause.NOTICED, "saved a checkpoint before it would be preempted, and ended"
    return _failure(host)


def _failure(host: Evidence) -> tuple[Cause, str] | None:
    if host.start_problem is not None:
        return Cause.CANNOT_START, f"could not run the command ({host.start_problem})"
    if host.error is not None:
        message = host.error.get("message", "")
        return Cause.EXCEPTION, f"raised {host.error.get('type', 'an exception')}" + (f": {message}" if message else "")
    if host.silent_s is not None:
        return Cause.SILENT, (
            f"has been silent for {host.silent_s:.0f} s: its process is frozen, or the others wait for it"
            if host.num_hosts > 1
            else f"has been silent for {host.silent_s:.0f} s: its process is frozen or hangs"
        )
    if host.is_actor_lost:
        return Cause.ACTOR_LOST, "lost the Ray worker that held its process, though its node lives"
    return _exit(host.exit_code)


def _exit(code: int | None) -> tuple[Cause, str] | None:
    if not code:
        return None
    if code == NOTICED:
        return Cause.EXITED, f"exited with code {NOTICED}, which means a checkpoint on notice, but there was no notice"
    if code == _NOT_FOUND:
        return Cause.CANNOT_START, f"exited with code {_NOT_FOUND}: a command was not found"
    if code == _KILLED:
        return Cause.KILLED, f"{format_exit(code)} on a node that lives: most likely the memory ran out"
    return Cause.KILLED if code < 0 else Cause.EXITED, format_exit(code)


def _sentence(host: Evidence, reason: str) -> str:
    """Return which host, what happened, and what the pod did with the others."""
    kind = "group" if " " in host.slice_type else "slice"  # "2-host GPU", or Google's name of a slice type
    name = f" {host.slice_name}" if host.slice_name else ""
    rest = host.num_hosts - 1
    ended = {0: "", 1: "; the other host was ended"}.get(rest, f"; the other {rest} hosts were ended")
    return f"Host {host.host} of the {host.slice_type} {kind}{name} {reason.rstrip('.')}{ended}."
