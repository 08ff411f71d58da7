"""Where a step runs. Resources are outside the version: moving a step never makes it run again."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_HEAD_CPUS = 0.1


@dataclass(frozen=True)
class Cpu:
    """A Ray job on CPUs, on any node that has them. What a step gets when it names no resources.

    Attributes:
        num_cpus: How many, also less than one.
        memory_bytes: Memory that Ray keeps for it, if that matters.
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
        count: How many; also a part of one, such as 0.5, which Ray lets several jobs share.
        type: What Ray calls the GPU (``"A100"``, ``"H100"``, ``"T4"``, ...), if it matters.
        num_cpus: CPUs of the same node.
        memory_bytes: Memory of the node (not of the GPU) that Ray keeps for it, if that matters.
    """

    count: float = 1.0
    type: str | None = None
    num_cpus: float = 1.0
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        _check_amount("Gpu", "count", self.count)
        if self.count > 1 and self.count != int(self.count):
            raise ValueError(f"Gpu(count={self.count!r}): above one, Ray gives only whole GPUs.")
        if self.type is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", str(self.type)):
            raise ValueError(f"Gpu(type={self.type!r}): give the type as Ray calls it, such as 'A100'.")
        if self.type is not None and self.type.upper().startswith("TPU"):
            raise ValueError(f"Gpu(type={self.type!r}): for TPUs say TpuSlice('v4-8') or another slice type.")
        _check_amount("Gpu", "num_cpus", self.num_cpus)
        _check_memory("Gpu", self.memory_bytes)


@dataclass(frozen=True)
class TpuSlice:
    """One TPU slice of this type (for example ``"v4-16"``): the function runs once on each of its hosts."""

    slice_type: str

    def __post_init__(self) -> None:
        if not self.slice_type:
            raise ValueError("TpuSlice needs a slice type such as 'v4-8'.")


@dataclass(frozen=True)
class HeadNode:
    """The cluster's head node, which is not preempted; see ``on_head_node``."""

    num_cpus: float = _HEAD_CPUS
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        _check_amount("on_head_node", "num_cpus", self.num_cpus)
        _check_memory("on_head_node", self.memory_bytes)


@dataclass(frozen=True)
class AirflowWorker:
    """The Airflow worker itself, for trifles; see ``on_airflow_worker``."""


def on_head_node(num_cpus: float = _HEAD_CPUS, memory_bytes: int | None = None) -> HeadNode:
    """Run the step on the cluster's head node, for the rare thing that must not be preempted.

    The head serves the whole cluster: what runs there should be small, and wait rather than compute.
    """
    return HeadNode(num_cpus, memory_bytes)


def on_airflow_worker() -> AirflowWorker:
    """Run the step in the Airflow worker's own process instead of as a Ray job."""
    return AirflowWorker()


Resources = Cpu | Gpu | TpuSlice | HeadNode | AirflowWorker


def _check_amount(owner: str, field: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{owner}({field}={value!r}): a step needs a number above zero.")


def _check_memory(owner: str, value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value <= 0):
        raise ValueError(f"{owner}(memory_bytes={value!r}): give a whole number of bytes above zero, or None.")
