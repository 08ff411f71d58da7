"""A pod lives and dies as a whole: one fresh process per host of a slice, and when one of them fails, all end at once.

Called inside a Ray driver. The driver's own output carries what host 0 prints, as it prints it; the other hosts' last
lines appear only when something fails. What this module does not do: try again. Telling a preemption from a failure,
budgets and several slices are the business of whoever calls it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tradewind.cloud_tpu.slice_types import SliceType
from tradewind.cloud_tpu.slice_types import slice_type as named_slice_type
from tradewind.runtime.pod_env import failure_text, how_it_ended, rank_order
from tradewind.runtime.pod_host import LAST_LINES, Launch, PodHost, Report
from tradewind.runtime.pod_reservation import reserved_slice
from tradewind.runtime.process_guard import GRACE_SECONDS

_HOLD_SECONDS: Final = 10.0
_UPLOAD_SECONDS: Final = 60.0


class PodFailedError(RuntimeError):
    """A host's process ended with an error, or the host was lost; the whole pod has been ended."""

    def __init__(self, host: int, exit_code: int | None, reason: str, last_lines: Sequence[str], message: str) -> None:
        super().__init__(message)
        self.host = host
        self.exit_code = exit_code
        """None if the host was lost before its process told how it ended."""
        self.reason = reason
        self.last_lines = tuple(last_lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.host, self.exit_code, self.reason, self.last_lines, str(self))


def run_on_slice(
    command: Sequence[str],
    slice_type: SliceType | str,
    *,
    env: Mapping[str, str] | None = None,
    log_dir: str | None = None,
    reservation_timeout_s: float | None = None,
) -> None:
    """Run ``command`` once on every host of one free slice; returns when all have exited with 0.

    Each process finds TRADEWIND_PROCESS_ID, TRADEWIND_NUM_PROCESSES and TRADEWIND_COORDINATOR in its environment,
    ready for ``jax.distributed.initialize``. Host i's whole output goes to ``{log_dir}/host-{i}.log``; give every
    attempt a folder of its own. Raises PodFailedError, or NoFreeSliceError after ``reservation_timeout_s``.
    """
    shape = named_slice_type(slice_type) if isinstance(slice_type, str) else slice_type
    if not ray.is_initialized():
        ray.init(address="auto", log_to_driver=False, logging_level=logging.WARNING)
    with reserved_slice(shape, reservation_timeout_s, _say) as placement:
        pod = _Pod(placement, shape)
        try:
            pod.start(tuple(command), dict(env or {}), log_dir)
            pod.watch()
        finally:
            pod.end()


class _HostFailed(Exception):
    def __init__(self, rank: int, exit_code: int | None, reason: str) -> None:
        self.rank, self.exit_code, self.reason = rank, exit_code, reason


class _Pod:
    """The host actors of one reserved slice, in the order of their ranks."""

    def __init__(self, placement: PlacementGroup, shape: SliceType) -> None:
        self._shape = shape
        self._hosts = [_host_actor(placement, bundle, shape.chips_per_host) for bundle in range(shape.hosts)]
        self._last_lines = [deque[str](maxlen=LAST_LINES) for _ in range(shape.hosts)]
        self._polls: dict[Any, int] = {}
        self._ended = False

    def start(self, command: tuple[str, ...], env: Mapping[str, str], log_dir: str | None) -> None:
        facts = self._ask_all("facts")
        order = rank_order(facts)
        self._hosts = [self._hosts[index] for index in order]
        facts = [facts[index] for index in order]
        coordinator = f"{facts[0].ip}:{ray.get(self._hosts[0].free_port.remote())}"
        _say("starting " + ", ".join(f"host {rank} at {each.ip}" for rank, each in enumerate(facts)))
        launches = [Launch(command, env, rank, len(facts), coordinator, log_dir) for rank in range(len(facts))]
        self._ask_all("start", launches)

    def watch(self) -> None:
        """Returns when every process has exited with 0; raises PodFailedError as soon as one has not."""
        try:
            for rank in range(len(self._hosts)):
                self._poll(rank)
            while self._polls:
                ready, _ = ray.wait(list(self._polls))
                rank = self._polls.pop(ready[0])
                if not self._is_over(rank, self._answer(rank, ready[0])):
                    self._poll(rank)
        except _HostFailed as failure:
            self.end()
            raise self._failed(failure) from None

    def end(self) -> None:
        """End what still runs on any host, and collect the rest of the output."""
        if self._ended:
            return
        self._ended = True
        # The polls that are still out come home too: they may hold a host's last lines.
        answers = {**self._polls, **{host.end.remote(): rank for rank, host in enumerate(self._hosts)}}
        ray.wait(list(answers), num_returns=len(answers), timeout=2 * GRACE_SECONDS + _UPLOAD_SECONDS)
        for reference, rank in answers.items():
            try:
                self._take(rank, ray.get(reference, timeout=0))
            except RayError as problem:  # its host is lost, or its log could not be brought home
                if not isinstance(problem, RayActorError):
                    _say(f"host {rank} did not end in order: {problem}")
        for host in self._hosts:
            ray.kill(host)

    def _ask_all(self, method: str, arguments: Sequence[Any] | None = None) -> list[Any]:
        given = [()] * len(self._hosts) if arguments is None else [(one,) for one in arguments]
        asked = [getattr(host, method).remote(*one) for host, one in zip(self._hosts, given, strict=True)]
        try:
            return [self._answer(rank, reference) for rank, reference in enumerate(asked)]
        except _HostFailed as failure:
            self.end()
            raise self._failed(failure) from None

    def _poll(self, rank: int) -> None:
        self._polls[self._hosts[rank].poll.remote(_HOLD_SECONDS, eager=rank == 0)] = rank

    def _answer(self, rank: int, reference: Any) -> Any:
        try:
            return ray.get(reference)
        except RayTaskError as problem:  # the actor lives; for example the command does not exist
            raise _HostFailed(rank, None, f"could not run the command ({problem.cause})") from None
        except RayError as problem:
            raise _HostFailed(rank, None, f"was lost ({type(problem).__name__})") from None

    def _is_over(self, rank: int, report: Report) -> bool:
        self._take(rank, report)
        if report.lost:
            raise _HostFailed(rank, None, "was lost (its Ray node died)")
        if report.exit_code:
            raise _HostFailed(rank, report.exit_code, how_it_ended(report.exit_code))
        return report.exit_code == 0

    def _take(self, rank: int, report: Report) -> None:
        self._last_lines[rank].extend(report.lines)
        if rank == 0 and report.lines:
            print("\n".join(report.lines), flush=True)

    def _failed(self, failure: _HostFailed) -> PodFailedError:
        """Print the other hosts' last lines, the failed one's at the end, and say in one sentence what happened."""
        ranks = [rank for rank in range(1, len(self._hosts)) if rank != failure.rank]
        for rank in [*ranks, *([failure.rank] if failure.rank else [])]:
            for line in self._last_lines[rank]:
                print(f"[host {rank}] {line}", flush=True)
        message = failure_text(failure.rank, self._shape.name, failure.reason, len(self._hosts))
        _say(message)
        lines = tuple(self._last_lines[failure.rank])
        return PodFailedError(failure.rank, failure.exit_code, failure.reason, lines, message)


def _host_actor(placement: PlacementGroup, bundle: int, chips: int) -> Any:
    options = {
        "num_cpus": 0,
        "resources": {"TPU": chips},
        "max_restarts": 0,
        "max_concurrency": 4,  # end() must get through while poll() waits
        "scheduling_strategy": PlacementGroupSchedulingStrategy(placement, bundle),
    }
    return ray.remote(PodHost).options(**options).remote()


def _say(text: str) -> None:
    print(f"tradewind: {text}", flush=True)
