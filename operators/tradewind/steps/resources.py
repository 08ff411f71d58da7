"""Resources of a step. They are outside the version: moving a step never makes it run again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.steps.amounts import MAX_AMOUNT
from tradewind.text import truncated_repr

_HEAD_CPUS: Final = 0.0
DEFAULT_MAX_PREEMPTIONS: Final = 1_000_000
DEFAULT_MAX_FAILURES: Final = 10
_STALL_LIMIT_S: Final = 1200.0
_FROZEN_S: Final = 60.0
_MIN_FROZEN_S: Final = 10.0
_MAX_FROZEN_S: Final = 3600.0
_HEAD: Final = re.compile(r"TPU-(?P<type>.+)-head")


@dataclass(frozen=True)
class Cpu:
    """A Ray job on CPUs of any node; the default of a step without resources.

    Attributes:
        num_cpus: Number of CPUs, also less than one.
        memory_bytes: Memory that Ray reserves for it, if given.
    """

    num_cpus: float = 1.0
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        _check_amount("Cpu", "num_cpus", self.num_cpus)
        _check_memory("Cpu", self.memory_bytes)


@dataclass(frozen=True)
class Gpu:
    """A Ray job on one node with GPUs.

    Attributes:
        count: Number of GPUs; also a fraction such as 0.5, which lets several jobs share a GPU.
        type: Ray's name of the GPU (``"A100"``, ``"H100"``, ``"T4"``, ...), if given.
        num_cpus: CPUs of the same node.
        memory_bytes: Memory of the node (not of the GPU) that Ray reserves for it, if given.
    """

    count: float = 1.0
    type: str | None = None
    num_cpus: float = 1.0
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        _check_amount("Gpu", "count", self.count)
        if self.count > 1 and self.count != int(self.count):
            raise ValueError(f"Gpu(count={truncated_repr(self.count)}): above one, Ray gives only whole GPUs.")
        _check_gpu_type("Gpu", "type", self.type)
        _check_amount("Gpu", "num_cpus", self.num_cpus)
        _check_memory("Gpu", self.memory_bytes)


@dataclass(frozen=True)
class TpuSlice:
    """TPU slices of one type: the function runs once on each of their hosts.

    A lost slice costs no retry: the processes restart on the next one, and the function continues from its newest
    checkpoint.

    Attributes:
        slice_type: The type (for example ``"v4-16"``).
        num_slices: Number of slices at once. Several numbers, such as ``(4, 2, 1)``, mean the largest that is free; it
            grows when more become free.
        max_preemptions: Number of lost slices after which an attempt gives up.
        max_failures: The same for failures of the function; the same failure twice without progress ends it earlier.
        stall_limit_s: How long a training may run without a new step before it counts as stalled.
        frozen_s: How long a process may miss its heartbeats before it counts as frozen, from 10 s to an hour. A library
            that holds Python's interpreter lock, for example to read a large file, prevents them.
        spare: Whether standby processes start on another free slice, which is then never idle for Ray's autoscaler.
            None means yes, unless the cluster has an autoscaler.
    """

    slice_type: str
    num_slices: int | tuple[int, ...] = 1
    max_preemptions: int = DEFAULT_MAX_PREEMPTIONS
    max_failures: int = DEFAULT_MAX_FAILURES
    stall_limit_s: float = _STALL_LIMIT_S
    frozen_s: float = _FROZEN_S
    spare: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.slice_type, str) or not self.slice_type:
            raise ValueError(
                f"TpuSlice(slice_type={truncated_repr(self.slice_type)}): give a slice type such as 'v4-8'."
            )
        object.__setattr__(self, "num_slices", _counts_of_slices(self.num_slices))
        _check_budgets("TpuSlice", self.max_preemptions, self.max_failures, self.stall_limit_s, self.frozen_s)
        if self.spare is not None and not isinstance(self.spare, bool):
            raise ValueError(
                f"TpuSlice(spare={truncated_repr(self.spare)}): give True, False, or None. It is not a number of "
                "slices: standby processes use one."
            )


@dataclass(frozen=True)
class Hosts:
    """Several hosts with CPUs or GPUs: the function runs once on each, like on the hosts of a slice.

    Attributes:
        count: Number of hosts.
        num_cpus: CPUs of each.
        gpus: GPUs of each.
        gpu_type: Ray's name of the GPU, if given.
        max_preemptions: Number of lost hosts after which an attempt gives up.
        max_failures, stall_limit_s, frozen_s: As for ``TpuSlice``.
    """

    count: int
    num_cpus: float = 1.0
    gpus: int = 0
    gpu_type: str | None = None
    max_preemptions: int = DEFAULT_MAX_PREEMPTIONS
    max_failures: int = DEFAULT_MAX_FAILURES
    stall_limit_s: float = _STALL_LIMIT_S
    frozen_s: float = _FROZEN_S

    def __post_init__(self) -> None:
        _check_whole("Hosts", "count", self.count, 1)
        _check_amount("Hosts", "num_cpus", self.num_cpus)
        _check_whole("Hosts", "gpus", self.gpus, 0)
        _check_gpu_type("Hosts", "gpu_type", self.gpu_type)
        if self.gpu_type is not None and not self.gpus:
            raise ValueError(f"Hosts(gpu_type={truncated_repr(self.gpu_type)}): set gpus to their number on each host.")
        _check_budgets("Hosts", self.max_preemptions, self.max_failures, self.stall_limit_s, self.frozen_s)


@dataclass(frozen=True)
class HeadNode:
    """The cluster's head node, which is not preempted; see ``on_head_node``."""

    num_cpus: float = _HEAD_CPUS
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.num_cpus != 0 or isinstance(self.num_cpus, bool):
            _check_amount("on_head_node", "num_cpus", self.num_cpus)
        _check_memory("on_head_node", self.memory_bytes)


@dataclass(frozen=True)
class AirflowWorker:
    """The Airflow worker itself, for trivial steps; see ``on_airflow_worker``."""


def on_head_node(num_cpus: float = _HEAD_CPUS, memory_bytes: int | None = None) -> HeadNode:
    """Run the step on the cluster's head node, for a rare step that must not be preempted.

    The head serves the whole cluster, so such a step should be small, and wait rather than compute. By default it
    requests no CPU, since the heads of a fleet have none for work; pass ``num_cpus`` for a head that has some.
    """
    return HeadNode(num_cpus, memory_bytes)


def on_airflow_worker() -> AirflowWorker:
    """Run the step in the Airflow worker's own process instead of as a Ray job."""
    return AirflowWorker()


Resources = Cpu | Gpu | TpuSlice | Hosts | HeadNode | AirflowWorker
RESOURCE_KINDS: Final[Mapping[str, type]] = {
    "cpu": Cpu,
    "gpu": Gpu,
    "tpu_slice": TpuSlice,
    "hosts": Hosts,
    "head_node": HeadNode,
    "airflow_worker": AirflowWorker,
}
"""Name in serialized form -> class."""


def kind_of_resources(resources: Resources) -> str:
    """Return the serialized name of ``resources``."""
    return next(kind for kind, made in RESOURCE_KINDS.items() if isinstance(resources, made))


def slices_of(pod: Any) -> TpuSlice | None:
    """Return the slices of a ``TpuPodConfig``, Marin's own or Tradewind's; None for any other value."""
    if type(pod).__name__ != "TpuPodConfig":
        return None
    return TpuSlice(pod.tpu_type, pod.slice_count if isinstance(pod.slice_count, int) else tuple(pod.slice_count))


def requested_slice(options: Mapping[str, Any]) -> TpuSlice | None:
    """Return the slice whose head resource (``TPU-v4-8-head``) the options of a Ray task request, if they do."""
    wanted = options.get("resources")
    names = [name for name, amount in wanted.items() if amount] if isinstance(wanted, Mapping) else []
    types = [head["type"] for name in names if isinstance(name, str) and (head := _HEAD.fullmatch(name))]
    return TpuSlice(types[0]) if len(types) == 1 else None


def _counts_of_slices(given: int | Sequence[int]) -> int | tuple[int, ...]:
    """Return the numbers of slices to choose from, the largest first."""
    if isinstance(given, (int, str, bytes)) or not isinstance(given, Sequence):
        _check_whole("TpuSlice", "num_slices", given, 1)
        return int(given)
    for count in given:
        _check_whole("TpuSlice", "num_slices", count, 1)
    if not given or len(set(given)) < len(given):
        raise ValueError(
            f"TpuSlice(num_slices={truncated_repr(given)}): give a number, or several that differ, such as (4, 2, 1)."
        )
    return tuple(sorted(given, reverse=True))


def _check_budgets(owner: str, max_preemptions: int, max_failures: int, stall_limit_s: float, frozen_s: float) -> None:
    _check_whole(owner, "max_preemptions", max_preemptions, 0)
    _check_whole(owner, "max_failures", max_failures, 0)
    _check_amount(owner, "stall_limit_s", stall_limit_s)
    is_number = isinstance(frozen_s, (int, float)) and not isinstance(frozen_s, bool)
    if not is_number or not _MIN_FROZEN_S <= frozen_s <= _MAX_FROZEN_S:
        raise ValueError(
            f"{owner}(frozen_s={truncated_repr(frozen_s)}): give seconds from {_MIN_FROZEN_S:.0f} to "
            f"{_MAX_FROZEN_S:.0f}. A process sends a heartbeat each second, and a busy machine delays some; after more "
            "than an hour, a frozen process would occupy its hosts unnoticed."
        )


def _check_whole(owner: str, field: str, value: object, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= MAX_AMOUNT:
        raise ValueError(
            f"{owner}({field}={truncated_repr(value)}): give a whole number from {minimum} up that fits into 64 bits."
        )


def _check_amount(owner: str, field: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MAX_AMOUNT:  # NaN fails too
        raise ValueError(
            f"{owner}({field}={truncated_repr(value)}): a step needs a number above zero that fits into 64 bits."
        )


def _check_memory(owner: str, value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_AMOUNT):
        raise ValueError(
            f"{owner}(memory_bytes={truncated_repr(value)}): give a whole number of bytes above zero, or None."
        )


def _check_gpu_type(owner: str, field: str, value: str | None) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", value):
        raise ValueError(f"{owner}({field}={truncated_repr(value)}): give the type as Ray calls it, such as 'A100'.")
    if value.upper().startswith("TPU"):
        raise ValueError(
            f"{owner}({field}={truncated_repr(value)}): for TPUs, give TpuSlice('v4-8') or another slice type."
        )
