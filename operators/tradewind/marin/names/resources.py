"""``marin.resources``: a job's resources, as config values; not versioned by themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tradewind.marin.legacy.classes import builder, declare_marin_module
from tradewind.marin.legacy.value_methods import RuntimeEnv, logical_cpu_core_count
from tradewind.marin.names.accelerators import (
    AcceleratorType,
    flop_count_per_device_from_accel_type,
    get_per_device_tpu_flops,
    get_tpu_type_and_chips,
    ray_device_name_to_jax_name_map,
)

__all__ = ["AcceleratorType", "CpuOnlyConfig", "GpuConfig", "ResourceConfig", "TpuPodConfig"]


class ResourceConfig:
    """Resources of a job.

    Attributes:
        runtime_env: Environment of its Ray job.
        device_flops_override: Floating-point operations per second of one device, if the table has none.
    """

    runtime_env: RuntimeEnv
    device_flops_override: float | None = None

    def accelerator_descriptor(self) -> str | None:
        """Name of the accelerator; None without one."""
        return None

    def as_ray_resources(self) -> Any:
        """Return these as Levanter's ``RayResources``."""
        return builder().find("levanter.utils.ray_utils.RayResources")(**self._amounts())

    def as_remote_kwargs(self) -> dict[str, Any]:
        """Return the arguments for ``ray.remote``."""
        return dict(self.as_ray_resources().to_kwargs())

    def with_env_vars(self, env: Mapping[str, str] | None = None, /, **kwargs: str) -> Any:
        """Return a copy with more environment variables."""
        variables = {**self.runtime_env.get("env_vars", {}), **(env or {}), **kwargs}
        changed = RuntimeEnv(**{**self.runtime_env, "env_vars": variables})
        return dataclasses.replace(self, runtime_env=changed)  # type: ignore[type-var]

    def device_flops(self) -> float:
        """Return peak floating-point operations per second of one device."""
        if self.device_flops_override is not None:
            return self.device_flops_override
        return self._known_flops()

    def total_device_count(self) -> int:
        """Return the number of devices of all slices."""
        raise NotImplementedError(f"total_device_count() not implemented for {type(self).__name__}.")

    def _amounts(self) -> dict[str, Any]:
        raise NotImplementedError(f"as_ray_resources() not implemented for {type(self).__name__}.")

    def _known_flops(self) -> float:
        raise NotImplementedError(
            f"device_flops() not implemented for {type(self).__name__}: give device_flops_override."
        )


@dataclass(frozen=True)
class CpuOnlyConfig(ResourceConfig):
    """CPUs of the machine that the job runs on."""

    num_cpus: int | None = field(default_factory=logical_cpu_core_count)
    runtime_env: RuntimeEnv = field(default_factory=lambda: RuntimeEnv(env_vars={"JAX_PLATFORMS": "cpu"}))
    device_flops_override: float | None = None

    def as_remote_kwargs(self) -> dict[str, Any]:
        return self._amounts()

    def total_device_count(self) -> int:
        return 1

    def _amounts(self) -> dict[str, Any]:
        return {"num_cpus": self.num_cpus, "runtime_env": self.runtime_env}


@dataclass(frozen=True)
class GpuConfig(ResourceConfig):
    """GPUs of a type in Ray's spelling, in capitals."""

    gpu_count: int = 1
    runtime_env: RuntimeEnv = field(default_factory=RuntimeEnv)
    accelerator_type: AcceleratorType | None = None
    device_flops_override: float | None = None

    def __post_init__(self) -> None:
        if self.accelerator_type is not None:
            object.__setattr__(self, "accelerator_type", self.accelerator_type.upper())

    def get_accelerator_type(self) -> AcceleratorType | None:
        """Return the type in Ray's spelling."""
        return self.accelerator_type

    def accelerator_descriptor(self) -> str | None:
        return self.accelerator_type

    def as_remote_kwargs(self) -> dict[str, Any]:
        return self._amounts()

    def total_device_count(self) -> int:
        return self.gpu_count

    def as_json_dict(self) -> dict[str, Any]:
        """Return the fields that JSON can represent."""
        names = ("gpu_count", "accelerator_type", "device_flops_override")
        return {name: getattr(self, name) for name in names}

    def _amounts(self) -> dict[str, Any]:
        amounts: dict[str, Any] = {"num_gpus": self.gpu_count, "runtime_env": self.runtime_env}
        if self.accelerator_type is not None:
            amounts["accelerator_type"] = self.accelerator_type
        return amounts

    def _known_flops(self) -> float:
        known = flop_count_per_device_from_accel_type(self.accelerator_type)
        if known is None:
            raise ValueError(
                f"No FLOPs data available for accelerator type: {self.accelerator_type}. Available types: "
                f"{', '.join(ray_device_name_to_jax_name_map)}. Give device_flops_override for another."
            )
        return known


@dataclass(frozen=True)
class TpuPodConfig(ResourceConfig):
    """TPU slices: their type such as ``v4-128``, and their number, or the acceptable numbers."""

    tpu_type: str
    slice_count: int | list[int] = 1
    runtime_env: RuntimeEnv = field(default_factory=RuntimeEnv)
    device_flops_override: float | None = None

    def accelerator_descriptor(self) -> str | None:
        return self.tpu_type

    def total_device_count(self) -> int:
        count = self.slice_count if isinstance(self.slice_count, int) else max(self.slice_count)
        return count * get_tpu_type_and_chips(self.tpu_type)[1]

    def as_json_dict(self) -> dict[str, Any]:
        """Return the fields that JSON can represent."""
        return {name: getattr(self, name) for name in ("tpu_type", "slice_count", "device_flops_override")}

    def _amounts(self) -> dict[str, Any]:
        return {"runtime_env": self.runtime_env, "num_cpus": 8}

    def _known_flops(self) -> float:
        return get_per_device_tpu_flops(self.tpu_type)


declare_marin_module("marin.resources", ResourceConfig, CpuOnlyConfig, GpuConfig, TpuPodConfig)
