"""One attempt of a pod on reserved hosts: one fresh process per host; when one of them is lost, all are killed.

``watch`` returns when every process has exited with 0, or with the incident as soon as something is wrong; then it is
already killing the processes on the other hosts. The first observation may be a consequence of another one: a
collective fails when its peer's host dies. So the pod checks the other hosts for a moment before it calls an incident a
failure. The runner decides about another attempt.

A pod that is about to end saves a checkpoint first. Every process gets the same notice, because all hosts save a
checkpoint together. When the first process has saved it and exited, the others get little more time, and none stays
beyond the deadline.
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

_NOTICE_S: Final = 30.0
"""How long a node that is drained without a deadline is expected to last."""
_LEAVE_S: Final = 2.0
"""How long before a deadline the pod kills the processes."""
_STRAGGLE_S: Final = 15.0
"""How long the other processes may take after the first has saved its checkpoint and exited."""
_HOLD_S: Final = 1.0
_POLL_S: Final = 0.25
_SETTLE_S: Final = 2.0
"""How long to check a failure: a host that is being killed loses its processes one by one."""
_UNANSWERED_S: Final = 5.0
"""After which time the node of a host that does not answer is checked too."""
_SAY_EVERY_S: Final = 60.0
_UPLOAD_S: Final = 60.0
_LOST_S: Final = 0.2
"""How long to wait for the last report of a lost host."""


class GracefulShutdown:
    """The pod's notice, if it has one, and when its processes must have exited."""

    def __init__(self, hosts: Sequence[HostStatus], say: Callable[[str], None]) -> None:
        self._hosts = hosts
        self._say = say
        self._notice: Notice | None = None

    def announce_loss(self, host: HostStatus, deadline: float | None, why: str) -> None:
        """Announce that ``host`` goes at ``deadline``, in seconds since the epoch, or soon."""
        at = time.time() + _NOTICE_S if deadline is None else deadline
        self.announce(Notice(at, f"{host.name} is about to go: {why}"))

    def announce(self, notice: Notice) -> None:
        """Send the notice to all hosts, unless they have one as early: the processes save a checkpoint together."""
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
        """Whether the deadline is near, or the others did not exit soon enough after the first one."""
        if self._notice is None:
            return False
        exits = [
            host.exited_at for host in self._hosts if host.evidence.exit_code == NOTICED and host.exited_at is not None
        ]
        if exits and all(host.has_exited for host in self._hosts):
            return True
        latest = min(
            [
                self._notice.deadline - _LEAVE_S,
                *(time.time() - time.monotonic() + at + _STRAGGLE_S for at in exits),
            ]
        )
        return time.time() >= latest


@dataclass(frozen=True)
class PodCommand:
    """The command of every host of the pod."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    log_dir: str | None
    restarts: int = 0
    error_of: Callable[[int], Mapping[str, str] | None] = lambda rank: None
    """The exception that the process of this rank has sent, if it could."""

    def log_name(self, rank: int) -> str:
        """Return the name of a new log for every start: an object in a bucket cannot be appended to."""
        return f"host-{rank}.log" if not self.restarts else f"host-{rank}.{self.restarts}.log"


@dataclass(eq=False)
class Pod:
    """The actors on the hosts of a reservation, in the order of their ranks."""

    reservation: Reservation
    group: HostGroup
    nodes: NodeWatch
    stall: Stall
    driver_timeout_s: float
    actors: Sequence[Any]
    say: Callable[[str], None]
    renewed_at: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        self.hosts = [
            HostStatus(rank, host, actor, Evidence(host.host, host.node.slice_name, self.group.name, len(self.actors)))
            for rank, (host, actor) in enumerate(zip(self.reservation.hosts, self.actors, strict=True))
        ]
        self._calls: dict[Any, HostStatus] = {}
        self._shutdown = GracefulShutdown(self.hosts, self.say)
        self.is_stopping = False
        """The processes were asked to exit."""
        self._has_ended = False
        self._pending_method: str | None = None
        """The method that the hosts are executing before the start; None once they are polled."""
        self._command = PodCommand((), {}, None)

    def start(self, command: PodCommand) -> Incident | None:
        """Start all processes; return the incident if that failed."""
        self._command = command
        limit_s = start_limit_s(dict(ray.get_runtime_context().runtime_env))
        if self._call_all("probe", limit_s) is not None or self._lacks_accelerators():
            return self._judge()
        first = self.hosts[0].probe
        assert first is not None
        coordinator = f"{first.ip}:{first.free_port}"
        self.say("starting " + ", ".join(f"host {host.rank} at {host.reserved.node.ip}" for host in self.hosts))
        launches = [self._launch(host, command, coordinator) for host in self.hosts]
        if self._call_all("start", start_limit_s({}), launches) is not None:
            return self._judge()
        self._pending_method = None
        return None

    def watch(self, each_poll: Callable[[], None] = lambda: None) -> Incident | None:
        """Wait until every process is done; return the incident that ended the pod, None after success or a stop."""
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
            if self._shutdown.is_due:
                return self._judge()
            each_poll()

    def stop(self, reason: str, timeout_s: float) -> None:
        """Ask the processes to save a checkpoint and exit; kill them after ``timeout_s``."""
        self.is_stopping = True
        self._shutdown.announce(Notice(time.time() + timeout_s, reason))

    def end(self, *, gracefully: bool = False) -> None:
        """End the remaining processes on all hosts, and collect the rest of the output."""
        if self._has_ended:
            return
        self._has_ended = True
        try:
            self._collect_last_reports(gracefully)
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
        """The newest step that any process has reported."""
        steps = [host.beat.step for host in self.hosts if host.beat is not None and host.beat.step is not None]
        return max(steps, default=None)

    @property
    def saved(self) -> int | None:
        """The step of the newest checkpoint that any process has reported as complete."""
        steps = [host.beat.saved for host in self.hosts if host.beat is not None and host.beat.saved is not None]
        return max(steps, default=None)

    def lost_nodes(self) -> set[str]:
        """Return the nodes that must not be used again: dead, or about to go."""
        return {host.reserved.node.id for host in self.hosts if host.is_lost}

    def last_seen_s(self) -> float:
        """Return how long ago the lost host last answered, which bounds the time of detection."""
        wrong = [host.answered_at for host in self.hosts if host.has_problem]
        return time.monotonic() - min(wrong) if wrong else 0.0

    # ---- calls to the hosts

    def _launch(self, host: HostStatus, command: PodCommand, coordinator: str) -> Launch:
        rank = ProcessRank(
            rank=host.rank,
            num_processes=len(self.hosts),
            coordinator=coordinator,
            slice_id=host.reserved.slice_id,
            num_slices=self.reservation.num_slices,
        )
        return Launch(
            command.command,
            command.env,
            rank,
            command.log_dir,
            command.log_name(host.rank),
            is_tpu=self.group.is_tpu,
            has_accelerators=self.group.has_accelerators,
            renewed_at=self._renewed_on(host),
        )

    def _call_all(self, method: str, limit_s: float, arguments: Sequence[Any] | None = None) -> HostStatus | None:
        """Call a method on all hosts, which have ``limit_s`` to answer; return the first host on which it failed."""
        self._pending_method = method
        rows = [()] * len(self.hosts) if arguments is None else [(argument,) for argument in arguments]
        for host, row in zip(self.hosts, rows, strict=True):
            self._calls[getattr(host.actor, method).remote(*row)] = host
        began, say_at = time.monotonic(), _SAY_EVERY_S
        while self._calls and not any(host.has_problem for host in self.hosts):
            self._collect_answers(_POLL_S)
            self._check_nodes()
            waited = time.monotonic() - began
            if self._calls and waited >= say_at:
                say_at = waited + _SAY_EVERY_S
                names = ", ".join(host.name for host in self._calls.values())
                self.say(f"waiting for an answer of {names} since {waited:.0f} s, for {limit_s:.0f} s at most")
            if waited > limit_s:
                for host in self._calls.values():
                    host.note_no_answer(limit_s)
        return next((host for host in self.hosts if host.has_problem), None)

    def _lacks_accelerators(self) -> bool:
        """Whether a host that should have TPU chips or GPUs has none; a host of a rehearsal simulates them."""
        if not self.group.has_accelerators:
            return False
        wanted, problem = (Accelerator.TPU, NO_CHIPS) if self.group.is_tpu else (Accelerator.GPU, NO_GPUS)
        found = {host.rank: host.probe.accelerator for host in self.hosts if host.probe is not None}
        for host in self.hosts:
            if found.get(host.rank) not in (wanted, Accelerator.SIMULATED):
                host.note_wrong(start_problem=problem)
        if Accelerator.SIMULATED in found.values():
            what = "chips" if self.group.is_tpu else "GPUs"
            self.say(f"the {what} of these hosts are simulated: their processes compute on CPUs")
        return any(host.has_problem for host in self.hosts)

    def _poll(self, host: HostStatus) -> None:
        call = host.actor.poll.remote(_HOLD_S, eager=host.rank == 0, renewed_at=self._renewed_on(host))
        self._calls[call] = host

    def _renewed_on(self, host: HostStatus) -> float | None:
        """Return when the driver's lease was last renewed, on the clock of this host; None without a lease."""
        if self.renewed_at is None or host.clock is None:
            return None
        return host.clock.at_least(self.renewed_at())

    def _collect_answers(self, timeout_s: float) -> None:
        """Note the hosts' answers, and poll each again."""
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
        if isinstance(problem, ActorUnavailableError):  # the connection broke: check the node
            if not self._is_node_gone(host) and not host.is_killed:
                if self._pending_method is None:
                    self._poll(host)
                else:  # the process may have started, and must not start twice
                    host.note(start_problem="the connection to its Ray worker broke")
        elif isinstance(problem, RayTaskError):  # the actor is alive; for example the log cannot be written
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

    # ---- checks of the nodes and heartbeats

    def _check_nodes(self) -> None:
        by_id = {host.reserved.node.id: host for host in self.hosts}
        for node in self.nodes.dead(by_id):
            by_id[node].note_wrong(is_node_alive=False)
        for node, deadline in self.nodes.draining(by_id).items():
            by_id[node].note(is_node_draining=True)
            self._shutdown.announce_loss(by_id[node], deadline, "its Ray node is being drained")
        for host in self.hosts:
            if host.preempted_by is not None:
                self._shutdown.announce_loss(host, host.preempted_by, "Google Cloud preempts it")

    def _check_silence(self) -> None:
        now = time.monotonic()
        silent = [host for host in self._calls.values() if now - host.answered_at > _UNANSWERED_S]
        if 0 < len(silent) < len(self.hosts):  # otherwise this driver may have lost its network
            for host in silent:
                if self._is_node_gone(host):
                    host.note_wrong()
        # By then these hosts have killed their processes themselves.
        alone_s = max(self.stall.frozen_s, self.driver_timeout_s)
        for host in silent:
            if now - host.answered_at > alone_s:
                host.note_wrong(silent_s=now - host.answered_at)
        beats = {host.rank: host.beat for host in self.hosts if not host.has_exited}
        stalled = find_stalled_host(beats, boot_time(), self.stall.frozen_s, self.stall.stall_s)
        if stalled is not None:
            self.hosts[stalled[0]].note_wrong(silent_s=stalled[1])

    def _is_node_gone(self, host: HostStatus) -> bool:
        """Whether the host's raylet does not answer two calls."""
        node = host.reserved.node
        if unresponsive_nodes([node]) and unresponsive_nodes([node]):
            host.note(is_node_alive=False)
        return host.is_node_dead

    def _awaits_quiet_host(self) -> bool:
        """Whether all problems may result from a host without heartbeat, which soon counts as frozen or beats again."""
        quiet_since = boot_time() - self.stall.frozen_s / 3
        beats = [host.beat for host in self.hosts if host.beat is not None and not host.has_exited]
        is_quiet = any(beat.alive_at < quiet_since for beat in beats)
        return is_quiet and all(was_aborted(host.evidence) for host in self.hosts if host.has_problem)

    # ---- the end

    def _judge(self) -> Incident | None:
        """Kill all processes, check all hosts for a moment, and return the incident; None if nothing is wrong."""
        for host in self.hosts:
            if not host.has_exited and not host.evidence.is_actor_lost:
                host.is_killed = True
                self._calls[host.actor.kill.remote()] = host
        self._settle()
        for host in self.hosts:
            host.note_error(self._command.error_of(host.rank))
        evidence = [host.evidence for host in sorted(self.hosts, key=lambda host: host.wrong_at)]
        try:
            return determine_incident(evidence[0], evidence[1:])
        except ValueError:
            return None

    def _settle(self) -> None:
        """Wait until it is clear whether a host was lost."""
        is_settled = all(host.has_exited and not host.has_problem for host in self.hosts)
        deadline = time.monotonic() + (0.0 if is_settled else _SETTLE_S)
        while not any(host.is_lost for host in self.hosts) and time.monotonic() < deadline:
            self._collect_answers(0.1)
            self._check_nodes()
            gone = unresponsive_nodes([host.reserved.node for host in self.hosts])
            for host in self.hosts:
                if host.reserved.node.id in gone:
                    host.note(is_node_alive=False)
            time.sleep(0.1)

    def _collect_last_reports(self, gracefully: bool) -> None:
        for host in self.hosts:
            if not host.evidence.is_actor_lost:
                host.is_killed = host.is_killed or not host.has_exited
                self._calls[host.actor.end.remote(gracefully=gracefully)] = host
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
            self.say(f"{host.name} did not end in order: {problem.cause}")
        except RayError:  # its host is lost
            host.note(is_actor_lost=True)
        else:
            if isinstance(answer, Report):
                self._note_report(host, answer)

    def print_last_lines(self, incident: Incident) -> None:
        """Print the last lines of the hosts whose output is not in this log, those of the incident's host last."""
        others = [host for host in self.hosts if host.rank > 0]
        for host in sorted(others, key=lambda host: host.is_named_by(incident)):
            for line in host.evidence.last_lines:
                print(f"[host {host.rank}] {line}", flush=True)
