"""A pod lives and dies as a whole: one fresh process per host, and when one of them is lost, all end at once.

This is one run of it, on hosts that are reserved. ``watch`` returns when every process has exited with 0, or as soon as
something is wrong, with what it was; by then the processes on the other hosts are being killed. What is seen first may
be the echo of something else (a collective fails when its peer's host dies), so the other hosts are looked at for a
moment before a failure is called one. Trying again is the runner's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError, RuntimeEnvSetupError

from tradewind.machine import boot_time
from tradewind.runtime.driver.process_guard import GRACE_S
from tradewind.runtime.pods.capacity.reservation import Reservation
from tradewind.runtime.pods.capacity.slices import HostGroup
from tradewind.runtime.pods.host_status import HostClock, HostStatus
from tradewind.runtime.pods.nodes import NodeWatch, Stall, start_limit_s, unresponsive_nodes
from tradewind.runtime.pods.on_host.heartbeat import find_stalled_host
from tradewind.runtime.pods.on_host.host import Launch, Report
from tradewind.runtime.pods.on_host.preemption_notice import Notice, is_sooner
from tradewind.runtime.pods.process_env import NO_CHIPS, NO_GPUS, Accelerator, ProcessRank
from tradewind.runtime.pods.verdicts import NOTICED, Evidence, Incident, determine_incident, was_aborted

# A pod that is about to go saves a checkpoint first: all hosts have the same notice, and leave by its deadline.
#
# The notice is told to every process of the pod, because a checkpoint is saved together. Who saves and leaves first
# shows that the checkpoint is there, so the others are not waited for much longer, and nobody beyond the deadline.

_NOTICE_S: Final = 30.0
"""How long a node that is drained without a deadline is counted on."""
_LEAVE_S: Final = 2.0
"""How long before a deadline the processes are ended."""
_STRAGGLE_S: Final = 15.0
"""How long after the first process has saved its checkpoint and left the others may take."""


class GracefulShutdown:
    """The notice that a pod has, if it has one, and when it must have left."""

    def __init__(self, hosts: Sequence[HostStatus], say: Callable[[str], None]) -> None:
        self._hosts = hosts
        self._say = say
        self._notice: Notice | None = None

    def announce_loss(self, host: HostStatus, deadline: float | None, why: str) -> None:
        """``host`` goes at ``deadline``, in seconds since the epoch, or soon."""
        at = time.time() + _NOTICE_S if deadline is None else deadline
        self.announce(Notice(at, f"{host.name} is about to go: {why}"))

    def announce(self, notice: Notice) -> None:
        """Leave the notice on all hosts, unless they have one as early: the processes save a checkpoint together."""
        if not is_sooner(notice, self._notice):
            return
        self._notice = notice
        left_s = max(0.0, notice.deadline - time.time())
        self._say(f"{notice.reason}; the processes have {left_s:.0f} s to save a checkpoint")
        for host in self._hosts:
            host.note(has_notice=True)
            host.actor.notify.remote(notice)

    @property
    def is_due(self) -> bool:
        """Whether the deadline of the notice is near, or the others do not follow the first one that left."""
        if self._notice is None:
            return False
        left = [
            host.exited_at for host in self._hosts if host.evidence.exit_code == NOTICED and host.exited_at is not None
        ]
        if left and all(host.has_exited for host in self._hosts):
            return True
        latest = min(
            [
                self._notice.deadline - _LEAVE_S,
                *(time.time() - time.monotonic() + at + _STRAGGLE_S for at in left),
            ]
        )
        return time.time() >= latest


_HOLD_S: Final = 1.0
_POLL_S: Final = 0.25
_SETTLE_S: Final = 2.0
"""How long a failure is looked at: a host that is being killed loses its processes one by one."""
_UNANSWERED_S: Final = 5.0
"""From when on a host that does not answer is asked by other ways."""
_SAY_EVERY_S: Final = 60.0
_UPLOAD_S: Final = 60.0
_LOST_S: Final = 0.2
"""How long to wait for the last report of a host that is gone."""


@dataclass(frozen=True)
class PodCommand:
    """What every host of the pod is to run."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    log_dir: str | None
    restarts: int = 0
    error_of: Callable[[int], Mapping[str, str] | None] = lambda rank: None
    """The exception that the process of this rank has told of, if it could."""

    def log_name(self, rank: int) -> str:
        """A log for every start, since one in an object store cannot be added to."""
        return f"host-{rank}.log" if not self.restarts else f"host-{rank}.{self.restarts}.log"


class Pod:
    """The actors on the hosts of a reservation, in the order of their ranks."""

    def __init__(
        self,
        reservation: Reservation,
        group: HostGroup,
        nodes: NodeWatch,
        stall: Stall,
        patience_s: float,
        *,
        actors: Sequence[Any],
        say: Callable[[str], None],
        renewed_at: Callable[[], float] | None = None,
    ) -> None:
        self._group = group
        self._renewed_at = renewed_at
        self._reservation = reservation
        self._nodes = nodes
        self._stall = stall
        self._patience_s = patience_s
        self._say = say
        self.hosts = [
            HostStatus(rank, seat, actor, Evidence(seat.host, seat.node.slice_name, group.name, len(actors)))
            for rank, (seat, actor) in enumerate(zip(reservation.seats, actors, strict=True))
        ]
        self._calls: dict[Any, HostStatus] = {}
        self._departure = GracefulShutdown(self.hosts, say)
        self.is_stopping = False
        """The processes were asked to leave."""
        self._has_ended = False
        self._pending_method: str | None = None
        """What the hosts were called for on their way to a start; None once they are polled."""
        self._task = PodCommand((), {}, None)

    # ---- the life of a pod

    def start(self, task: PodCommand) -> Incident | None:
        """Start all processes; what went wrong, if something did."""
        self._task = task
        limit_s = start_limit_s(dict(ray.get_runtime_context().runtime_env))
        if self._call_all("probe", limit_s) is not None or self._lacks_accelerators():
            return self._judge()
        first = self.hosts[0].probe
        assert first is not None
        coordinator = f"{first.ip}:{first.free_port}"
        self._say("starting " + ", ".join(f"host {host.rank} at {host.seat.node.ip}" for host in self.hosts))
        launches = [self._launch(host, task, coordinator) for host in self.hosts]
        if self._call_all("start", start_limit_s({}), launches) is not None:
            return self._judge()
        self._pending_method = None
        return None

    def watch(self, each_poll: Callable[[], None] = lambda: None) -> Incident | None:
        """Returns when every process is done (None), or what ended the pod. None also when it was asked to stop."""
        for host in self.hosts:
            host.answered_at = time.monotonic()
            self._poll(host)
        while True:
            self._collect_answers(_POLL_S)
            self._check_nodes()
            self._check_silence()
            if any(host.has_problem for host in self.hosts) and not self._awaits_quiet_host():
                return self._judge()
            if self.is_done:
                return None
            if self._departure.is_due:
                return self._judge()
            each_poll()

    def stop(self, reason: str, timeout_s: float) -> None:
        """Ask the processes to save a checkpoint and to leave; they are ended after so many seconds."""
        self.is_stopping = True
        self._departure.announce(Notice(time.time() + timeout_s, reason))

    def end(self, *, politely: bool = False) -> None:
        """End what still runs on any host, and collect the rest of the output."""
        if self._has_ended:
            return
        self._has_ended = True
        try:
            self._collect_last_reports(politely)
        finally:
            for host in self.hosts:
                with suppress(RayError, ValueError):
                    ray.kill(host.actor)

    @property
    def is_done(self) -> bool:
        """Every process has exited with 0."""
        return all(host.is_done for host in self.hosts)

    @property
    def step(self) -> int | None:
        """The newest step that any process has said."""
        steps = [host.beat.step for host in self.hosts if host.beat is not None and host.beat.step is not None]
        return max(steps, default=None)

    @property
    def saved(self) -> int | None:
        """The step of the newest checkpoint that any process has said to be complete."""
        steps = [host.beat.saved for host in self.hosts if host.beat is not None and host.beat.saved is not None]
        return max(steps, default=None)

    def lost_nodes(self) -> set[str]:
        """The nodes that must not be used again: dead, or about to go."""
        return {host.seat.node.id for host in self.hosts if host.is_lost}

    def last_seen_s(self) -> float:
        """How long ago the host that was lost last answered: at most so long it took to find out."""
        wrong = [host.answered_at for host in self.hosts if host.has_problem]
        return time.monotonic() - min(wrong) if wrong else 0.0

    # ---- asking the hosts

    def _launch(self, host: HostStatus, task: PodCommand, coordinator: str) -> Launch:
        place = ProcessRank(
            rank=host.rank,
            num_processes=len(self.hosts),
            coordinator=coordinator,
            slice_id=host.seat.slice_id,
            num_slices=self._reservation.num_slices,
        )
        name = task.log_name(host.rank)
        return Launch(
            task.command,
            task.env,
            place,
            task.log_dir,
            name,
            is_tpu=self._group.is_tpu,
            has_accelerators=self._group.has_accelerators,
            renewed_at=self._renewed_on(host),
        )

    def _call_all(self, method: str, limit_s: float, arguments: Sequence[Any] | None = None) -> HostStatus | None:
        """Call a method on all hosts, each of which has so long to answer; the first host on which it failed."""
        self._pending_method = method
        given = [()] * len(self.hosts) if arguments is None else [(argument,) for argument in arguments]
        for host, arguments_of_host in zip(self.hosts, given, strict=True):
            self._calls[getattr(host.actor, method).remote(*arguments_of_host)] = host
        began, say_at = time.monotonic(), _SAY_EVERY_S
        while self._calls and not any(host.has_problem for host in self.hosts):
            self._collect_answers(_POLL_S)
            self._check_nodes()
            waited = time.monotonic() - began
            if self._calls and waited >= say_at:
                say_at = waited + _SAY_EVERY_S
                names = ", ".join(host.name for host in self._calls.values())
                self._say(f"waiting for an answer of {names} since {waited:.0f} s, for {limit_s:.0f} s at most")
            if waited > limit_s:
                for host in self._calls.values():
                    host.note_no_answer(limit_s)
        return next((host for host in self.hosts if host.has_problem), None)

    def _lacks_accelerators(self) -> bool:
        """Whether a host that should have TPU chips or GPUs has none; one that only stands for such a host says so."""
        if not self._group.has_accelerators:
            return False
        wanted, problem = (Accelerator.TPU, NO_CHIPS) if self._group.is_tpu else (Accelerator.GPU, NO_GPUS)
        found = {host.rank: host.probe.accelerator for host in self.hosts if host.probe is not None}
        for host in self.hosts:
            if found.get(host.rank) not in (wanted, Accelerator.SIMULATED):
                host.note_wrong(start_problem=problem)
        if Accelerator.SIMULATED in found.values():
            what = "chips" if self._group.is_tpu else "GPUs"
            self._say(f"the {what} of these hosts are simulated: their processes compute on CPUs")
        return any(host.has_problem for host in self.hosts)

    def _poll(self, host: HostStatus) -> None:
        call = host.actor.poll.remote(_HOLD_S, eager=host.rank == 0, renewed_at=self._renewed_on(host))
        self._calls[call] = host

    def _renewed_on(self, host: HostStatus) -> float | None:
        """When our lease was last renewed, on the clock of this host; None without a lease."""
        if self._renewed_at is None or host.clock is None:
            return None
        return host.clock.at_least(self._renewed_at())

    def _collect_answers(self, timeout_s: float) -> None:
        """Note what the hosts say; each is asked again."""
        if not self._calls:
            return
        ready, _ = ray.wait(list(self._calls), num_returns=1, timeout=timeout_s)
        more, _ = ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
        for reference in {*ready, *more}:
            host = self._calls.pop(reference)
            try:
                answer = ray.get(reference)
            except RayError as problem:
                self._note_problem(host, problem)
                continue
            host.answered_at = time.monotonic()
            if isinstance(answer, Report):
                self._note_report(host, answer)
                if not host.has_exited and not host.is_killed and not host.is_node_dead:
                    self._poll(host)
            elif answer is not None:
                host.probe, host.clock = answer, HostClock(answer.now, boot_time())

    def _note_problem(self, host: HostStatus, problem: RayError) -> None:
        if isinstance(problem, ActorUnavailableError):  # the connection broke; is it the host?
            if not self._is_node_gone(host) and not host.is_killed:
                if self._pending_method is None:
                    self._poll(host)
                else:  # nobody knows whether it has started its process, and twice it must not
                    host.note(start_problem="the connection to its Ray worker broke")
        elif isinstance(problem, RayTaskError):  # the actor lives; for example the log cannot be written
            host.note(start_problem=str(problem.cause))
        elif isinstance(problem, RuntimeEnvSetupError):
            host.note(start_problem=f"its environment could not be set up: {problem.error_message}")
        else:
            is_drained = isinstance(problem, ActorDiedError) and problem.preempted
            host.note(is_actor_lost=True, is_node_draining=host.evidence.is_node_draining or is_drained)
        host.note_wrong()

    def _note_report(self, host: HostStatus, report: Report) -> None:
        host.note_report(report, boot_time())
        if host.rank == 0 and report.lines:
            print("\n".join(report.lines), flush=True)

    # ---- checking the hosts by other ways

    def _check_nodes(self) -> None:
        by_id = {host.seat.node.id: host for host in self.hosts}
        for node in self._nodes.dead(by_id):
            by_id[node].note_wrong(is_node_alive=False)
        for node, deadline in self._nodes.draining(by_id).items():
            by_id[node].note(is_node_draining=True)
            self._departure.announce_loss(by_id[node], deadline, "its Ray node is being drained")
        for host in self.hosts:
            if host.preempted_by is not None:
                self._departure.announce_loss(host, host.preempted_by, "Google Cloud preempts it")

    def _check_silence(self) -> None:
        now = time.monotonic()
        silent = [host for host in self._calls.values() if now - host.answered_at > _UNANSWERED_S]
        if 0 < len(silent) < len(self.hosts):  # else it may well be this driver that is cut off
            for host in silent:
                if self._is_node_gone(host):
                    host.note_wrong()
        alone_s = max(self._stall.frozen_s, self._patience_s)  # by then they have ended their processes themselves
        for host in silent:
            if now - host.answered_at > alone_s:
                host.note_wrong(silent_s=now - host.answered_at)
        beats = {host.rank: host.beat for host in self.hosts if not host.has_exited}
        found = find_stalled_host(beats, boot_time(), self._stall.frozen_s, self._stall.stall_s)
        if found is not None:
            self.hosts[found[0]].note_wrong(silent_s=found[1])

    def _is_node_gone(self, host: HostStatus) -> bool:
        """Whether the host's raylet does not answer, asked twice."""
        node = host.seat.node
        if unresponsive_nodes([node]) and unresponsive_nodes([node]):
            host.note(is_node_alive=False)
        return host.is_node_dead

    def _awaits_quiet_host(self) -> bool:
        """Whether all that is wrong may be for want of a host that is quiet: soon it counts as frozen, or it speaks."""
        quiet_since = boot_time() - self._stall.frozen_s / 3
        beats = [host.beat for host in self.hosts if host.beat is not None and not host.has_exited]
        is_quiet = any(beat.alive_at < quiet_since for beat in beats)
        return is_quiet and all(was_aborted(host.evidence) for host in self.hosts if host.has_problem)

    # ---- the end

    def _judge(self) -> Incident | None:
        """End all others at once, look around for a moment, and say what it was; None if nothing is wrong."""
        for host in self.hosts:
            if not host.has_exited and not host.evidence.is_actor_lost:
                host.is_killed = True
                self._calls[host.actor.kill.remote()] = host
        self._settle()
        for host in self.hosts:
            host.note_error(self._task.error_of(host.rank))
        evidence = [host.evidence for host in sorted(self.hosts, key=lambda host: host.wrong_at)]
        try:
            return determine_incident(evidence[0], evidence[1:])
        except ValueError:
            return None

    def _settle(self) -> None:
        """Until it is clear that a host was lost, or that none was."""
        is_settled = all(host.has_exited and not host.has_problem for host in self.hosts)
        deadline = time.monotonic() + (0.0 if is_settled else _SETTLE_S)
        while not any(host.is_lost for host in self.hosts) and time.monotonic() < deadline:
            self._collect_answers(0.1)
            self._check_nodes()
            gone = unresponsive_nodes([host.seat.node for host in self.hosts])
            for host in self.hosts:
                if host.seat.node.id in gone:
                    host.note(is_node_alive=False)
            time.sleep(0.1)

    def _collect_last_reports(self, politely: bool) -> None:
        for host in self.hosts:
            if not host.evidence.is_actor_lost:
                host.is_killed = host.is_killed or not host.has_exited
                self._calls[host.actor.end.remote(politely=politely)] = host
        began = time.monotonic()
        while self._calls:
            waited_s = time.monotonic() - began
            is_hopeless = waited_s > _LOST_S and all(host.is_unresponsive for host in self._calls.values())
            if is_hopeless or waited_s > 2 * GRACE_S + _UPLOAD_S:
                return
            ready, _ = ray.wait(list(self._calls), num_returns=1, timeout=_POLL_S)
            for reference in ready:
                self._collect_last_report(self._calls.pop(reference), reference)

    def _collect_last_report(self, host: HostStatus, reference: Any) -> None:
        try:
            answer = ray.get(reference)
        except RayTaskError as problem:
            self._say(f"{host.name} did not end in order: {problem.cause}")
        except RayError:  # its host is lost
            host.note(is_actor_lost=True)
        else:
            if isinstance(answer, Report):
                self._note_report(host, answer)

    def print_last_lines(self, incident: Incident) -> None:
        """The last lines of the hosts whose output is not in this one, those of the host in question at the end."""
        others = [host for host in self.hosts if host.rank > 0]
        for host in sorted(others, key=lambda host: host.is_named_by(incident)):
            for line in host.evidence.last_lines:
                print(f"[host {host.rank}] {line}", flush=True)
