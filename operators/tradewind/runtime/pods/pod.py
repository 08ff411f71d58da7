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

from tradewind.runtime.pods.environment import NO_CHIPS, NO_GPUS, Accelerator, Place
from tradewind.runtime.pods.groups import HostGroup
from tradewind.runtime.pods.heartbeat import boot_time, silent_host
from tradewind.runtime.pods.host import Launch, Report
from tradewind.runtime.pods.host_clock import HostClock
from tradewind.runtime.pods.liveness import NodeWatch, Stall, silent_nodes, start_limit_s
from tradewind.runtime.pods.notices import Notice, is_sooner
from tradewind.runtime.pods.reservation import Reservation
from tradewind.runtime.pods.seen import SeenHost
from tradewind.runtime.pods.verdicts import NOTICED, Incident, judge
from tradewind.runtime.process_guard import GRACE_SECONDS

_HOLD_SECONDS: Final = 1.0
_TURN_SECONDS: Final = 0.25
_SETTLE_SECONDS: Final = 2.0
"""How long a failure is looked at: a host that is being killed loses its processes one by one."""
_UNANSWERED_SECONDS: Final = 5.0
"""From when on a host that does not answer is asked by other ways."""
_SAY_EVERY_SECONDS: Final = 60.0
_NOTICE_SECONDS: Final = 30.0
"""How long a node that is drained without a deadline is counted on."""
_LEAVE_SECONDS: Final = 2.0
"""How long before a deadline the processes are ended."""
_STRAGGLE_SECONDS: Final = 15.0
"""How long after the first process has saved its checkpoint and left the others may take."""
_UPLOAD_SECONDS: Final = 60.0
_LOST_SECONDS: Final = 0.2
"""How long to wait for the last words of a host that is gone."""


@dataclass(frozen=True)
class Task:
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
            SeenHost(rank, seat, actor)
            for rank, (seat, actor) in enumerate(zip(reservation.seats, actors, strict=True))
        ]
        self._calls: dict[Any, SeenHost] = {}
        self._notice: Notice | None = None
        self._leave_at: float | None = None
        self.stopping: str | None = None
        """Why the pod was asked to stop, if it was."""
        self._ended = False
        self._asking: str | None = None
        """What the hosts were asked for on their way to a start; None once they are polled."""
        self._task = Task((), {}, None)

    # ---- the life of a pod

    def start(self, task: Task) -> Incident | None:
        """Start all processes; what went wrong, if something did."""
        self._task = task
        limit_s = start_limit_s(dict(ray.get_runtime_context().runtime_env))
        if self._ask_all("facts", limit_s) is not None or self._lacks_accelerators():
            return self._judged()
        first = self.hosts[0].facts
        assert first is not None
        coordinator = f"{first.ip}:{first.free_port}"
        self._say("starting " + ", ".join(f"host {one.rank} at {one.seat.node.ip}" for one in self.hosts))
        launches = [self._launch(one, task, coordinator) for one in self.hosts]
        if self._ask_all("start", start_limit_s({}), launches) is not None:
            return self._judged()
        self._asking = None
        return None

    def watch(self, each_turn: Callable[[], None] = lambda: None) -> Incident | None:
        """Returns when every process is done (None), or what ended the pod. None also when it was asked to stop."""
        for host in self.hosts:
            host.answered_at = time.monotonic()
            self._poll(host)
        while True:
            self._take_answers(_TURN_SECONDS)
            self._look_at_nodes()
            self._look_for_silence()
            if any(one.is_wrong for one in self.hosts):
                return self._judged()
            if all(one.done for one in self.hosts):
                return None
            if self._must_leave():
                return self._judged()
            each_turn()

    def stop(self, reason: str, seconds: float) -> None:
        """Ask the processes to save a checkpoint and to leave; they are ended after so many seconds."""
        self.stopping = reason
        self._tell(Notice(time.time() + seconds, reason))

    def end(self, *, politely: bool = False) -> None:
        """End what still runs on any host, and collect the rest of the output."""
        if self._ended:
            return
        self._ended = True
        try:
            self._take_last_words(politely)
        finally:
            for host in self.hosts:
                with suppress(RayError, ValueError):
                    ray.kill(host.actor)

    @property
    def is_done(self) -> bool:
        """Every process has exited with 0."""
        return all(one.done for one in self.hosts)

    @property
    def step(self) -> int | None:
        """The newest step that any process has said."""
        steps = [one.beat.step for one in self.hosts if one.beat is not None and one.beat.step is not None]
        return max(steps, default=None)

    @property
    def saved(self) -> int | None:
        """The step of the newest checkpoint that any process has said to be complete."""
        steps = [one.beat.saved for one in self.hosts if one.beat is not None and one.beat.saved is not None]
        return max(steps, default=None)

    def lost_nodes(self) -> set[str]:
        """The nodes that must not be used again: dead, or about to go."""
        return {one.seat.node.id for one in self.hosts if one.node_dead or one.draining or one.preempted}

    def last_seen_s(self) -> float:
        """How long ago the host that was lost last answered: at most so long it took to find out."""
        wrong = [one.answered_at for one in self.hosts if one.is_wrong]
        return time.monotonic() - min(wrong) if wrong else 0.0

    # ---- asking the hosts

    def _launch(self, host: SeenHost, task: Task, coordinator: str) -> Launch:
        place = Place(
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

    def _ask_all(self, method: str, limit_s: float, arguments: Sequence[Any] | None = None) -> SeenHost | None:
        """Call a method on all hosts, each of which has so long to answer; the first host on which it failed."""
        self._asking = method
        given = [()] * len(self.hosts) if arguments is None else [(one,) for one in arguments]
        for host, one in zip(self.hosts, given, strict=True):
            self._calls[getattr(host.actor, method).remote(*one)] = host
        began, say_at = time.monotonic(), _SAY_EVERY_SECONDS
        while self._calls and not any(one.is_wrong for one in self.hosts):
            self._take_answers(_TURN_SECONDS)
            self._look_at_nodes()
            waited = time.monotonic() - began
            if self._calls and waited >= say_at:
                say_at = waited + _SAY_EVERY_SECONDS
                names = ", ".join(one.name for one in self._calls.values())
                self._say(f"waiting for an answer of {names} since {waited:.0f} s, for {limit_s:.0f} s at most")
            if waited > limit_s:
                for host in self._calls.values():
                    host.unanswered(limit_s)
        return next((one for one in self.hosts if one.is_wrong), None)

    def _lacks_accelerators(self) -> bool:
        """Whether a host that should have TPU chips or GPUs has none; one that only stands for such a host says so."""
        if not self._group.has_accelerators:
            return False
        wanted, problem = (Accelerator.TPU, NO_CHIPS) if self._group.is_tpu else (Accelerator.GPU, NO_GPUS)
        has = {one.rank: one.facts.accelerator for one in self.hosts if one.facts is not None}
        for host in self.hosts:
            if has.get(host.rank) not in (wanted, Accelerator.SIMULATED):
                host.start_problem = problem
                host.note_wrong()
        if Accelerator.SIMULATED in has.values():
            what = "chips" if self._group.is_tpu else "GPUs"
            self._say(f"the {what} of these hosts are simulated: their processes compute on CPUs")
        return any(one.is_wrong for one in self.hosts)

    def _poll(self, host: SeenHost) -> None:
        call = host.actor.poll.remote(_HOLD_SECONDS, eager=host.rank == 0, renewed_at=self._renewed_on(host))
        self._calls[call] = host

    def _renewed_on(self, host: SeenHost) -> float | None:
        """When our lease was last renewed, on the clock of this host; None without a lease."""
        if self._renewed_at is None or host.clock is None:
            return None
        return host.clock.at_least(self._renewed_at())

    def _take_answers(self, seconds: float) -> None:
        """Note what the hosts say; each is asked again."""
        if not self._calls:
            return
        ready, _ = ray.wait(list(self._calls), num_returns=1, timeout=seconds)
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
                self._take(host, answer)
                if not host.over and not host.killed and not host.node_dead:
                    self._poll(host)
            elif answer is not None:
                host.facts, host.clock = answer, HostClock(answer.now, boot_time())

    def _note_problem(self, host: SeenHost, problem: RayError) -> None:
        if isinstance(problem, ActorUnavailableError):  # the connection broke; is it the host?
            if not self._node_is_gone(host) and not host.killed:
                if self._asking is None:
                    self._poll(host)
                else:  # nobody knows whether it has started its process, and twice it must not
                    host.start_problem = "the connection to its Ray worker broke"
        elif isinstance(problem, RayTaskError):  # the actor lives; for example the log cannot be written
            host.start_problem = str(problem.cause)
        elif isinstance(problem, RuntimeEnvSetupError):
            host.start_problem = f"its environment could not be set up: {problem.error_message}"
        else:
            host.actor_lost = True
            host.draining = host.draining or (isinstance(problem, ActorDiedError) and problem.preempted)
        host.note_wrong()

    def _take(self, host: SeenHost, report: Report) -> None:
        host.take(report, boot_time())
        if host.rank == 0 and report.lines:
            print("\n".join(report.lines), flush=True)

    # ---- looking at the hosts by other ways

    def _look_at_nodes(self) -> None:
        by_id = {one.seat.node.id: one for one in self.hosts}
        for node in self._nodes.dead(by_id):
            by_id[node].node_dead = True
            by_id[node].note_wrong()
        for node, deadline in self._nodes.draining(by_id).items():
            by_id[node].draining = True
            self._tell_of_loss(by_id[node], deadline, "its Ray node is being drained")
        for host in self.hosts:
            if host.preempted_by is not None:
                self._tell_of_loss(host, host.preempted_by, "Google Cloud preempts it")

    def _look_for_silence(self) -> None:
        now = time.monotonic()
        silent = [one for one in self._calls.values() if now - one.answered_at > _UNANSWERED_SECONDS]
        if 0 < len(silent) < len(self.hosts):  # else it may well be this driver that is cut off
            for host in silent:
                if self._node_is_gone(host):
                    host.note_wrong()
        alone_s = max(self._stall.frozen_s, self._patience_s)  # by then they have ended their processes themselves
        for host in silent:
            if now - host.answered_at > alone_s:
                host.silent_s = now - host.answered_at
                host.note_wrong()
        beats = {one.rank: one.beat for one in self.hosts if not one.over}
        found = silent_host(beats, boot_time(), self._stall.frozen_s, self._stall.stall_s)
        if found is not None:
            self.hosts[found[0]].silent_s = found[1]
            self.hosts[found[0]].note_wrong()

    def _node_is_gone(self, host: SeenHost) -> bool:
        """Whether the host's raylet does not answer, asked twice."""
        node = host.seat.node
        host.node_dead = host.node_dead or (bool(silent_nodes([node])) and bool(silent_nodes([node])))
        return host.node_dead

    # ---- notices

    def _tell_of_loss(self, host: SeenHost, deadline: float | None, why: str) -> None:
        at = time.time() + _NOTICE_SECONDS if deadline is None else deadline
        self._tell(Notice(at, f"{host.name} is about to go: {why}"))

    def _tell(self, notice: Notice) -> None:
        """Leave the notice on all hosts, unless they have one as early: the processes save a checkpoint together."""
        if not is_sooner(notice, self._notice):
            return
        self._notice = notice
        self._leave_at = notice.deadline - _LEAVE_SECONDS
        left = max(0.0, notice.deadline - time.time())
        self._say(f"{notice.reason}; the processes have {left:.0f} s to save a checkpoint")
        for host in self.hosts:
            host.noticed = True
            host.actor.notify.remote(notice)

    def _must_leave(self) -> bool:
        """Whether the deadline of a notice is near, or the others do not follow the first one that left."""
        if self._notice is None or self._leave_at is None:
            return False
        left = [one.over_at for one in self.hosts if one.exit_code == NOTICED and one.over_at is not None]
        if left and all(one.over for one in self.hosts):
            return True
        latest = min([self._leave_at, *(time.time() - time.monotonic() + at + _STRAGGLE_SECONDS for at in left)])
        return time.time() >= latest

    # ---- the end

    def _judged(self) -> Incident | None:
        """End all others at once, look around for a moment, and say what it was; None if nothing is wrong."""
        for host in self.hosts:
            if not host.over and not host.actor_lost:
                host.killed = True
                self._calls[host.actor.kill.remote()] = host
        self._settle()
        hosts = sorted(self.hosts, key=lambda one: one.wrong_at)
        evidence = [one.evidence(self._group.name, len(hosts), self._task.error_of(one.rank)) for one in hosts]
        try:
            return judge(evidence[0], evidence[1:])
        except ValueError:
            return None

    def _settle(self) -> None:
        """Until it is clear that a host was lost, or that none was."""
        settled = all(one.over and not one.is_wrong for one in self.hosts)
        deadline = time.monotonic() + (0.0 if settled else _SETTLE_SECONDS)
        while not any(one.is_lost for one in self.hosts) and time.monotonic() < deadline:
            self._take_answers(0.1)
            self._look_at_nodes()
            gone = silent_nodes([one.seat.node for one in self.hosts])
            for host in self.hosts:
                host.node_dead = host.node_dead or host.seat.node.id in gone
            time.sleep(0.1)

    def _take_last_words(self, politely: bool) -> None:
        for host in self.hosts:
            if not host.actor_lost:
                host.killed = host.killed or not host.over
                self._calls[host.actor.end.remote(politely=politely)] = host
        began = time.monotonic()
        while self._calls:
            waited = time.monotonic() - began
            patience = 2 * GRACE_SECONDS + _UPLOAD_SECONDS
            if waited > patience or (waited > _LOST_SECONDS and all(one.is_mute for one in self._calls.values())):
                return
            ready, _ = ray.wait(list(self._calls), num_returns=1, timeout=_TURN_SECONDS)
            for reference in ready:
                self._take_last_word(self._calls.pop(reference), reference)

    def _take_last_word(self, host: SeenHost, reference: Any) -> None:
        try:
            answer = ray.get(reference)
        except RayTaskError as problem:
            self._say(f"{host.name} did not end in order: {problem.cause}")
        except RayError:  # its host is lost
            host.actor_lost = True
        else:
            if isinstance(answer, Report):
                self._take(host, answer)

    def print_last_lines(self, incident: Incident) -> None:
        """The last lines of the hosts whose output is not in this one, those of the host in question at the end."""
        ranks = [one for one in self.hosts if one.rank > 0]
        for host in sorted(ranks, key=lambda one: one.is_the_one(incident)):
            for line in host.last_lines:
                print(f"[host {host.rank}] {line}", flush=True)
