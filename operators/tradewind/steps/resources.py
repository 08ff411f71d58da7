"""Where a step runs. Resources are outside the version: moving a step never makes it run again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cpu:
    """A Ray job on CPUs, on any node that has them. What a step gets when it names no resources."""

    num_cpus: float = 1.0
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.num_cpus <= 0:
            raise ValueError(f"Cpu(num_cpus={self.num_cpus!r}): a step needs more than zero CPUs.")


@dataclass(frozen=True)
class TpuSlice:
    """One TPU slice of this type (for example ``"v4-16"``): the function runs once on each of its hosts."""

    slice_type: str

    def __post_init__(self) -> None:
        if not self.slice_type:
            raise ValueError("TpuSlice needs a slice type such as 'v4-8'.")


@dataclass(frozen=True)
class AirflowWorker:
    """The Airflow worker itself, for trifles; see ``on_airflow_worker``."""


def on_airflow_worker() -> AirflowWorker:
    """Run the step in the Airflow worker's own process instead of as a Ray job."""
    return AirflowWorker()


Resources = Cpu | TpuSlice | AirflowWorker
