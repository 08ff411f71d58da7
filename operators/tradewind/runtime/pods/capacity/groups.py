"""What one group of hosts is: a TPU slice, or a number of hosts with CPUs or GPUs. A group is had whole or not at all.

Nothing in here talks to Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tradewind.cloud_tpu.ray_labels import head_resource
from tradewind.cloud_tpu.slice_types import SliceType, slice_type
from tradewind.steps import Hosts, TpuSlice

_A_LITTLE: Final = 0.001  # of a resource that only says what a node is, as Ray itself asks for it


@dataclass(frozen=True)
class HostGroup:
    """The hosts that live and die together, and what the process on each of them takes."""

    name: str
    """What people read: ``v4-16``, or ``2-host GPU``."""
    hosts: int
    resources: Mapping[str, float] = field(hash=False)
    """Of one host, in Ray's words."""
    shape: SliceType | None = None
    """The slice type, if this is a TPU slice."""

    @classmethod
    def of(cls, wanted: TpuSlice | Hosts) -> HostGroup:
        """What a step's resources ask for."""
        if isinstance(wanted, TpuSlice):
            return cls.of_slice(wanted.slice_type)
        return cls.of_hosts(wanted.count, num_cpus=wanted.num_cpus, gpus=wanted.gpus, gpu_type=wanted.gpu_type)

    @classmethod
    def of_slice(cls, wanted: SliceType | str) -> HostGroup:
        """One slice of this type. Raises UnknownSliceTypeError."""
        shape = slice_type(wanted) if isinstance(wanted, str) else wanted
        return cls(shape.name, shape.hosts, {"TPU": shape.chips_per_host}, shape)

    @classmethod
    def of_hosts(cls, count: int, *, num_cpus: float = 1.0, gpus: int = 0, gpu_type: str | None = None) -> HostGroup:
        """``count`` different hosts, each with so many CPUs and GPUs (of this type) for the process."""
        if count < 1:
            raise ValueError(f"A group of {count} hosts: give a number from 1 up.")
        resources: dict[str, float] = {"CPU": num_cpus}
        if gpus:
            resources["GPU"] = gpus
        if gpu_type:
            resources[f"accelerator_type:{gpu_type}"] = _A_LITTLE
        return cls(f"{count}-host {gpu_type or ('GPU' if gpus else 'CPU')}", count, resources)

    @property
    def is_tpu(self) -> bool:
        return self.shape is not None

    @property
    def has_gpus(self) -> bool:
        return "GPU" in self.resources

    @property
    def has_accelerators(self) -> bool:
        return self.is_tpu or self.has_gpus

    @property
    def head_resource(self) -> str:
        """What worker 0 of a slice of this type has one of."""
        return head_resource(self.name)
