"""Run a pod on one reservation after another, until it is done or a budget is used up.

Preemptions and failures are counted separately, and neither costs an Airflow retry. After a preemption the allocator
reserves the next slice while the driver ends the old processes. After a failure the pod uses the same hosts again,
unless their slice is blocked and there is another. The log and the timeline have the times that it took to detect the
end, to end the old processes, to reserve new hosts, and to start on them.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import ray

from tradewind.machine import boot_time
from tradewind.runtime.pods.budgets import Budgets, History, PodGivenUpError
from tradewind.runtime.pods.capacity.allocator import (
    BackgroundAllocator,
    ElasticSize,
    ScalingTimes,
    StandbyPool,
    may_hold,
)
from tradewind.runtime.pods.capacity.reservation import (
    Relocation,
    Reservation,
    ReservedHost,
    SliceBlocklist,
    should_block,
)
from tradewind.runtime.pods.capacity.slices import HostGroup, Slice, free_slices, known_slices
from tradewind.runtime.pods.nodes import NodeWatch, Stall, is_autoscaled
from tradewind.runtime.pods.on_host.actors import host_actor
from tradewind.runtime.pods.on_host.host import DRIVER_TIMEOUT_S, StandbySpec
from tradewind.runtime.pods.on_host.mailbox import Mailbox
from tradewind.runtime.pods.on_host.standby_process import supports_standby
from tradewind.runtime.pods.pod import Pod, PodCommand
from tradewind.runtime.pods.process_env import FIRST_START_VARIABLE, RESTARTS_VARIABLE
from tradewind.runtime.pods.timeline import Timeline, TimelineEvent
from tradewind.runtime.pods.verdicts import Incident

_GROW_S: Final = 120.0
"""How long the processes may take to save a checkpoint when the pod is to grow."""
_STANDBY_AFTER_S: Final = 30.0
"""How long after its start a pod without a step yet starts standby processes."""
_STEP: Final = re.compile(r"step-(\d+)")


def run_pod(
    command: Sequence[str],
    group: HostGroup,
    *,
    num_slices: int | Sequence[int] = 1,
    budgets: Budgets = Budgets(),  # noqa: B008 (frozen)
    stall: Stall = Stall(),  # noqa: B008
    scaling: ScalingTimes = ScalingTimes(),  # noqa: B008
    env: Mapping[str, str] | None = None,
    log_dir: str | None = None,
    progress: Callable[[], str | None] | None = None,
    timeline: Timeline | None = None,
    reservation_timeout_s: float | None = None,
    driver_timeout_s: float = DRIVER_TIMEOUT_S,
    renewed_at: Callable[[], float] | None = None,
    spare: bool | None = None,
    call: bytes | None = None,
) -> list[bytes]:
    """Run ``command`` once on every host of ``num_slices`` groups, again after each loss, until all exit with 0.

    Args:
        command: What each host runs.
        group: A TPU slice, or a number of hosts.
        num_slices: How many groups; a list means as many of them as there are.
        budgets: After how many preemptions and failures to give up.
        stall: After which time without heartbeat or step a process counts as stalled.
        scaling: How often a pod that is smaller than it may be tries to grow.
        env: Further variables of the processes.
        log_dir: The folder of the hosts' output: ``host-R.log`` for rank R, ``host-R.K.log`` after K restarts.
        progress: Returns the newest checkpoint: after two failures with the same traceback and no new checkpoint
            between them, the pod gives up.
        timeline: Receives the events.
        reservation_timeout_s: How long to wait for hosts, each time; by default for ever.
        driver_timeout_s: A host without a call of this driver for so long kills its process, because another driver may
            run the same by then.
        renewed_at: When the lease of this attempt was last renewed, by the driver's boot clock. With it, hosts count
            from the renewal, not from the driver's last call.
        spare: Whether to keep standby processes on a free slice; None means unless there is an autoscaler.
        call: What the processes fetch with ``mailbox.fetch_call``.

    Returns:
        The values that the processes sent with ``mailbox.answer``, in the order of their ranks.

    Raises:
        PodGivenUpError: A budget is used up, or the same failure came twice.
        NoFreeSliceError: Nothing was free within ``reservation_timeout_s``.
    """
    if not ray.is_initialized():
        ray.init(address="auto", log_to_driver=False, logging_level=logging.WARNING)
    with ExitStack() as stack:
        mailbox = stack.enter_context(Mailbox(call, ray.util.get_node_ip_address())) if call is not None else None
        run = _Run(
            tuple(command),
            group,
            ElasticSize(num_slices, scaling),
            budgets,
            stall,
            {**(env or {}), **(mailbox.env if mailbox else {})},
            log_dir,
            progress or (lambda: None),
            timeline or Timeline(None),
            reservation_timeout_s,
            driver_timeout_s,
            renewed_at,
            spare,
            mailbox,
        )
        stack.callback(run.close)
        run.run()
        return mailbox.results() if mailbox else []


@dataclass(eq=False)
class _Run:
    """One pod from its first start to its end; the fields are as in ``run_pod``."""

    command: tuple[str, ...]
    group: HostGroup
    size: ElasticSize
    budgets: Budgets
    stall: Stall
    env: Mapping[str, str]
    log_dir: str | None
    progress: Callable[[], str | None]
    timeline: Timeline
    reservation_timeout_s: float | None
    driver_timeout_s: float
    renewed_at: Callable[[], float] | None
    spare: bool | None
    mailbox: Mailbox | None

    def __post_init__(self) -> None:
        self._history = History()
        self._restarts = 0
        self._saved: int | None = None
        self._first_start: float | None = None
        self._avoided: set[str] = set()
        """Ids of lost nodes."""
        self._blocklist = SliceBlocklist(self.size.smallest)
        self._nodes = NodeWatch()
        self._reservation: Reservation | None = None
        self._has_stepped = False
        self._started_at = 0.0
        self._grow_to: int | None = None
        self._standby = self._new_standby()
        self._allocator = BackgroundAllocator(
            self.group,
            self.size,
            self._avoided,
            self._blocklist,
            self._standby,
            self.timeline,
            say,
            self.reservation_timeout_s,
        )

    def run(self) -> None:
        """Run until the pod is done. Raises PodGivenUpError, NoFreeSliceError."""
        while True:
            reservation = self._reservation or self._allocator.begin().result()
            assert reservation is not None
            self._reservation = reservation
            self._blocklist.note_reserved(reservation.slice_names)
            if self._attempt(reservation):
                return
            self._restarts += 1

    def close(self) -> None:
        """Release everything."""
        if self._standby is not None:
            self._standby.close()
        self._nodes.stop()
        self._allocator.stop()
        if self._reservation is not None:
            self._reservation.release()
        self._allocator.close()

    # ---- hosts

    def _new_standby(self) -> StandbyPool | None:
        if self.spare is False or not self.group.is_tpu or not supports_standby(self.command):
            return None
        return StandbyPool(
            self.group,
            StandbySpec(self.command, self.env),
            lambda: self._avoided | self._blocklist.nodes,
            self.driver_timeout_s,
            may_hold=may_hold(self.spare),
        )

    def _free_slices(self) -> list[Slice]:
        return free_slices(self.group, set(self._avoided), set(self._blocklist.names))

    def _actors(self, hosts: Sequence[ReservedHost]) -> list[Any]:
        """Return the standby actors on these hosts, and fresh ones for the rest."""
        standby = self._standby.take(hosts) if self._standby is not None else {}
        if standby:
            say(f"standby processes wait on {len(standby)} of {len(hosts)} hosts")
        return [standby.get(host.node.id) or host_actor(self.group, host, self.driver_timeout_s) for host in hosts]

    # ---- one attempt

    def _attempt(self, reservation: Reservation) -> bool:
        """Run once on these hosts; return whether the pod is done."""
        pod = Pod(
            reservation,
            self.group,
            self._nodes,
            self.stall,
            self.driver_timeout_s,
            actors=self._actors(reservation.hosts),
            say=say,
            renewed_at=self.renewed_at,
        )
        try:
            incident = self._start(pod, reservation) or pod.watch(lambda: self._note_poll(pod))
        except BaseException:  # a stop of the driver: let the processes shut down
            pod.end(gracefully=True)
            raise
        self._note_first_step(pod)
        if pod.is_done:
            pod.end()
            self.timeline.note(TimelineEvent("done", time.time(), step=pod.step))
            return True
        if self._grow_to is not None and not pod.lost_nodes():
            self._release_to_grow(pod, reservation)
            return False
        assert incident is not None
        self._recover(incident, pod, reservation)
        return False

    def _start(self, pod: Pod, reservation: Reservation) -> Incident | None:
        self._started_at = began = time.monotonic()
        self._first_start = self._first_start or time.time()
        self._has_stepped, self._grow_to = False, None
        self.size.running(reservation.num_slices, time.monotonic())
        incident = pod.start(self._command())
        if incident is None:
            self.timeline.note(
                TimelineEvent(
                    "started",
                    time.time(),
                    slices=tuple(reservation.slice_names),
                    hosts=tuple(host.reserved.node.ip for host in pod.hosts),
                    num_slices=reservation.num_slices,
                    restarts=self._restarts,
                    start_s=time.monotonic() - began,
                )
            )
        return incident

    def _command(self) -> PodCommand:
        mailbox, restarts = self.mailbox, self._restarts
        env = {RESTARTS_VARIABLE: str(restarts), FIRST_START_VARIABLE: repr(self._first_start)}
        return PodCommand(
            self.command,
            {**self.env, **env},
            self.log_dir,
            restarts,
            (lambda rank: mailbox.error(restarts, rank)) if mailbox else (lambda rank: None),
        )

    def _note_poll(self, pod: Pod) -> None:
        self._note_first_step(pod)
        now = time.monotonic()
        if self._standby is not None and (self._has_stepped or now - self._started_at > _STANDBY_AFTER_S):
            self._standby.pause(False)  # not sooner: in a rehearsal their imports would slow down the pod's own
        due = self.size.next_look(now)
        if due is None or due > now or pod.is_stopping:
            return
        self._grow_to = self.size.grow_to(len(self._free_slices()), now)
        if self._grow_to is not None:
            pod.stop(f"the pod is to grow to {self._grow_to} slices", _GROW_S)

    def _note_first_step(self, pod: Pod) -> None:
        if self._has_stepped or pod.step is None:
            return
        self._has_stepped = True
        first = min(at for host in pod.hosts if (at := host.stepped_at) is not None)
        self.timeline.note(TimelineEvent("first_step", time.time() - (boot_time() - first), step=pod.step))

    # ---- between two attempts

    def _release_to_grow(self, pod: Pod, reservation: Reservation) -> None:
        pod.end()
        reservation.release()
        self._reservation = None
        self.timeline.note(
            TimelineEvent(
                "scaled",
                time.time(),
                num_slices=reservation.num_slices,
                grows_to=self._grow_to,
                step=pod.step,
            )
        )

    def _recover(self, incident: Incident, pod: Pod, reservation: Reservation) -> None:
        """Charge the incident, end the remaining processes, and get hosts for the next attempt."""
        detected, detect_s = time.monotonic(), pod.last_seen_s()
        lost = pod.lost_nodes()
        self._avoided |= lost
        self._blocklist.note_replaced(
            {str(host.reserved.node.slice_name) for host in pod.hosts if host.reserved.node.id in lost}
        )
        relocation = self._find_relocation(incident, reservation)
        has_others = relocation is not Relocation.UNAVAILABLE
        self._history = self._history.after(incident, time.time(), self._newest(pod), has_others=has_others)
        give_up = self._history.end(self.budgets)
        next_one = None if give_up or not lost or reservation.num_slices > 1 else self._allocator.begin()
        pod.end()
        if not incident.cause.is_preemption:
            pod.print_last_lines(incident)
        end_s = time.monotonic() - detected
        self._note(incident, pod, detect_s, end_s)
        moves = not give_up and self._block_slice(incident, pod, relocation)
        if lost or moves:
            reservation.release()
            self._reservation = None
        if give_up:
            say(f"{incident.sentence} {give_up}")
            raise PodGivenUpError(f"{incident.sentence} {give_up}", incident, self._history)
        if incident.cause.is_preemption:
            count = f"preemption {self._history.preemptions} of {self.budgets.max_preemptions:,}"
        else:
            count = f"failure {self._history.failures} of {self.budgets.max_failures:,}"
        say(f"{incident.sentence} This is {count}; continuing from the newest checkpoint")
        if next_one is not None:
            self._reservation = next_one.result()

    def _find_relocation(self, incident: Incident, reservation: Reservation) -> Relocation:
        """Return whether the pod could continue without the slice that the incident names."""
        if incident.cause.is_preemption or not self.group.is_tpu:
            return Relocation.UNAVAILABLE
        try:
            free = [each.name for each in self._free_slices()]
            known = known_slices(self.group)
            return self._blocklist.relocation(incident, reservation.slice_names, free, known, is_autoscaled())
        except Exception as problem:  # an outage of Ray's head; the pod still has its own slices
            say(f"cannot find out whether there is another slice: {problem}. The pod stays.")
            return Relocation.UNAVAILABLE

    def _block_slice(self, incident: Incident, pod: Pod, relocation: Relocation) -> bool:
        """Block the slice that the incident names, if it is a reason to; return whether to leave it."""
        name, is_reason = incident.slice_name, should_block(incident, has_stepped=pod.step is not None)
        if name is None or not (is_reason or self._history.is_repeated_here):
            return False
        self._blocklist.add(
            name, {host.reserved.node.id for host in pod.hosts if host.reserved.node.slice_name == name}
        )
        say(f"slice {name} is avoided from now on, {relocation.value}")
        return relocation is not Relocation.UNAVAILABLE

    def _note(self, incident: Incident, pod: Pod, detect_s: float, end_s: float) -> None:
        say(f"it took at most {detect_s:.1f} s to detect this and {end_s:.1f} s to end the other processes")
        steps = [int(step) for step in _STEP.findall(self._history.latest[-1].progress or "")]
        self.timeline.note(
            TimelineEvent(
                "preempted" if incident.cause.is_preemption else "failed",
                time.time(),
                cause=incident.cause.value,
                sentence=incident.sentence,
                slice_name=incident.slice_name,
                host=incident.host,
                detect_s=detect_s,
                end_s=end_s,
                step=pod.step,
                checkpoint_step=max([*steps, *([] if pod.saved is None else [pod.saved])], default=None),
            )
        )

    def _newest(self, pod: Pod) -> str | None:
        """Return the newest checkpoint, from the store and from the heartbeats: it may be stored elsewhere.

        While the store does not answer, each call returns another text, so no checkpoint counts as the one before.
        """
        self._saved = max((step for step in (self._saved, pod.saved) if step is not None), default=None)
        saved = None if self._saved is None else f"step {self._saved} was saved"
        try:
            stored = self.progress()
        except Exception as problem:
            say(f"cannot find the newest checkpoint: {problem}")
            stored = f"unknown after {self._restarts} restarts"
        return "; ".join(part for part in (stored, saved) if part is not None) or None


def say(text: str) -> None:
    """Print one line of the driver's log."""
    print(f"tradewind: {text}", flush=True)
