"""The pure part of running a pod: who has which rank, what each process finds in its environment, what we tell people.

Nothing in here talks to Ray, to a process or to a clock.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

WORKER_ID_LABEL: Final = "ray.io/tpu-worker-id"
SLICE_NAME_LABEL: Final = "ray.io/tpu-slice-name"
POD_TYPE_LABEL: Final = "ray.io/tpu-pod-type"

ON_CPU: Final = {
    "JAX_PLATFORMS": "cpu",  # a step that asked for CPUs must not take the chips of the host that it lands on
    "TF_CPP_MIN_LOG_LEVEL": "3",  # on CPUs, XLA logs an error that is none for every compilation it finds again
}
_NO_TPU: Final = {
    **ON_CPU,
    "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
}
# Left behind by an earlier multislice run, MEGASCALE_* hangs JAX. Ray sets OMP_NUM_THREADS to the actor's CPU count,
# which is not meant for a process that has the whole host.
_CLEARED_PREFIX: Final = "MEGASCALE_"
_CLEARED: Final = frozenset({"OMP_NUM_THREADS"})


@dataclass(frozen=True)
class HostFacts:
    """What one host says of itself when its actor starts."""

    node_id: str
    ip: str
    labels: Mapping[str, str]
    has_tpu: bool
    """False on a simulated host."""


def rank_order(hosts: Sequence[HostFacts]) -> list[int]:
    """The indices of ``hosts`` in the order of their ranks: process 0 runs on TPU worker 0.

    Raises ValueError if the worker ids are not 0, 1, 2 ...: such a slice cannot form a mesh.
    """
    if len(hosts) == 1:
        return [0]
    ids = [host.labels.get(WORKER_ID_LABEL, "") for host in hosts]
    order = sorted(range(len(hosts)), key=lambda index: int(ids[index]) if ids[index].isdecimal() else -1)
    if [ids[index] for index in order] != [str(rank) for rank in range(len(hosts))]:
        raise ValueError(
            f"The hosts' TPU worker ids are {', '.join(repr(one) for one in ids)}, not 0 to {len(ids) - 1}."
        )
    return order


def process_env(
    inherited: Mapping[str, str],
    given: Mapping[str, str],
    *,
    rank: int,
    num_processes: int,
    coordinator: str,
    has_tpu: bool,
) -> dict[str, str]:
    """The whole environment of the process with this rank."""
    kept = {k: v for k, v in inherited.items() if not k.startswith(_CLEARED_PREFIX) and k not in _CLEARED}
    return {
        **kept,
        "PYTHONUNBUFFERED": "1",  # its lines are followed as they come
        **({} if has_tpu else _NO_TPU),
        **given,
        "TRADEWIND_PROCESS_ID": str(rank),
        "TRADEWIND_NUM_PROCESSES": str(num_processes),
        "TRADEWIND_COORDINATOR": coordinator,
    }


def how_it_ended(exit_code: int) -> str:
    """``exited with code 3`` or ``was killed by SIGKILL``."""
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


def failure_text(host: int, slice_type: str, reason: str, num_hosts: int) -> str:
    """One sentence: which host, what happened, and what became of the others."""
    ended = {1: "", 2: "; the other host was ended"}.get(num_hosts, f"; the other {num_hosts - 1} hosts were ended")
    return f"Host {host} of the {slice_type} slice {reason}{ended}."


def waiting_text(slice_type: str, seconds: float, pod_types: Mapping[str, int]) -> str:
    """What the job log says while no slice is free; ``pod_types`` counts the live hosts of each slice type."""
    has = ", ".join(
        f"{count} {'host' if count == 1 else 'hosts'} of {name}" for name, count in sorted(pod_types.items())
    )
    since = "" if seconds < 1 else f" since {seconds:.0f} s"
    return f"waiting for a free {slice_type} slice{since}; the cluster has {has or 'no TPU hosts'}"


class LineSplitter:
    """Cuts a stream of bytes into lines; a carriage return (a progress bar) ends a line too."""

    longest: Final = 64 * 1024

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        text, held = self._rest + data, b""
        if text.endswith(b"\r"):  # the newline that belongs to it may come next
            text, held = text[:-1], b"\r"
        *whole, rest = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        while len(rest) > self.longest:
            whole.append(rest[: self.longest])
            rest = rest[self.longest :]
        self._rest = rest + held
        return [line.decode(errors="replace") for line in whole]

    def end(self) -> list[str]:
        """What was left without a line's end."""
        rest, self._rest = self._rest.removesuffix(b"\r"), b""
        return [rest.decode(errors="replace")] if rest else []
