"""The pure part of running a pod: ranks, the environment of each process, texts for users, and lines of output.

Nothing here calls Ray, a process or a clock.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

ON_CPU: Final = {
    "JAX_PLATFORMS": "cpu",  # a step that requested CPUs must not take the chips of its host
    "TF_CPP_MIN_LOG_LEVEL": "3",  # on CPUs, XLA logs a harmless error for every cached compilation
    "CUDA_VISIBLE_DEVICES": "",  # Ray 2.60 leaves GPUs visible to a job that requested none
}
_SIMULATED: Final = {
    **{name: value for name, value in ON_CPU.items() if name != "CUDA_VISIBLE_DEVICES"},
    "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
}
_ONE_DEVICE: Final = "--xla_force_host_platform_device_count=1"
# MEGASCALE_* of an earlier multislice run hangs JAX. Ray narrows the chips of an actor that did not request all of a
# host's, and sets OMP_NUM_THREADS to the actor's CPU count: both are wrong for a process that has the whole host.
_CLEARED_PREFIX: Final = "MEGASCALE_"
_CLEARED: Final = frozenset({"OMP_NUM_THREADS", "TPU_VISIBLE_CHIPS"})
# Ray's narrowed bounds are cleared with the chips; others are the machine's own, which GKE injects for libtpu.
_CHIP_BOUNDS: Final = "TPU_CHIPS_PER_HOST_BOUNDS"
_BOUNDS: Final = frozenset({_CHIP_BOUNDS, "TPU_HOST_BOUNDS"})
_NARROWED_BOUNDS: Final[Mapping[str, int]] = {"1,1,1": 1, "1,2,1": 2}
"""Bounds of a part of a host, as Ray writes them -> its number of chips."""
_MEGASCALE_PORT: Final = 8081
_MEGASCALE: Final = frozenset(
    {"MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_PORT", "MEGASCALE_SLICE_ID"}
)

NO_CHIPS: Final = (
    "no TPU chip is visible on this host: its driver is missing, or its container may not see /dev/accel* or /dev/vfio"
)
NO_GPUS: Final = (
    "no GPU is visible on this host: its driver is missing, or its container may not see /dev/nvidia* or /dev/kfd"
)

FIRST_START_VARIABLE: Final = "TRADEWIND_FIRST_START"
RESTARTS_VARIABLE: Final = "TRADEWIND_RESTARTS"


class Accelerator(enum.Enum):
    """What a process computes on."""

    TPU = "tpu"
    GPU = "gpu"
    NONE = "none"
    """CPUs."""
    SIMULATED = "simulated"
    """CPUs, on a host of a rehearsal that simulates TPUs or GPUs."""


@dataclass(frozen=True)
class ProcessRank:
    """The rank of a process and the size of its pod."""

    rank: int
    num_processes: int
    coordinator: str
    """``host:port`` on the host of rank 0, free when the pod started."""
    slice_id: int = 0
    num_slices: int = 1
    host: int = 0
    """The rank within the slice."""


@dataclass(frozen=True)
class HostProbe:
    """A host's description of itself when its actor starts."""

    ip: str
    accelerator: Accelerator
    free_port: int
    """A port on which no process listens."""
    now: float
    """Its boot clock."""


def process_env(
    inherited: Mapping[str, str],
    given: Mapping[str, str],
    accelerator: Accelerator,
    *,
    keep_threads: bool = False,
    chips: int = 0,
) -> dict[str, str]:
    """Return the environment of a process, without the variables of its rank.

    Args:
        inherited: The environment of the actor.
        given: The variables of the pod.
        accelerator: What the process computes on; NONE if its group requested none.
        keep_threads: The process does not have the whole host.
        chips: How many TPU chips the host has.
    """
    stale = _BOUNDS if _NARROWED_BOUNDS.get(inherited.get(_CHIP_BOUNDS, ""), chips) != chips else frozenset()
    cleared = frozenset[str]() if keep_threads else _CLEARED | stale
    kept = {k: v for k, v in inherited.items() if not k.startswith(_CLEARED_PREFIX) and k not in cleared}
    simulated = _SIMULATED | {"XLA_FLAGS": f"{inherited.get('XLA_FLAGS', '')} {_ONE_DEVICE}".lstrip()}
    return {
        **kept,
        "PYTHONUNBUFFERED": "1",  # the driver follows its lines
        **(ON_CPU if accelerator is Accelerator.NONE else {}),
        **(simulated if accelerator in (Accelerator.NONE, Accelerator.SIMULATED) else {}),
        **{k: v for k, v in given.items() if k not in _MEGASCALE},
    }


def rank_env(rank: ProcessRank, *, is_tpu: bool) -> dict[str, str]:
    """Return the variables of a rank; several slices need all four MEGASCALE_* variables, one slice needs none."""
    env = {
        "TRADEWIND_PROCESS_ID": str(rank.rank),
        "TRADEWIND_NUM_PROCESSES": str(rank.num_processes),
        "TRADEWIND_COORDINATOR": rank.coordinator,
        "TRADEWIND_SLICE_ID": str(rank.slice_id),
        "TRADEWIND_NUM_SLICES": str(rank.num_slices),
    }
    if not is_tpu or rank.num_slices == 1:
        return env
    return env | {
        "MEGASCALE_COORDINATOR_ADDRESS": f"{rank.coordinator.rpartition(':')[0]}:{_MEGASCALE_PORT}",
        "MEGASCALE_NUM_SLICES": str(rank.num_slices),
        "MEGASCALE_PORT": str(_MEGASCALE_PORT),
        "MEGASCALE_SLICE_ID": str(rank.slice_id),
    }


def format_exit(exit_code: int) -> str:
    """Return ``exited with code 3`` or ``was killed by SIGKILL``."""
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


def waiting_text(wanted: str, waited_s: float, pod_types: Mapping[str, int], kind: str = "TPU") -> str:
    """Return the log line while no slice is free; ``pod_types`` counts the live hosts of each slice type or GPU."""
    has = ", ".join(
        f"{count} {'host' if count == 1 else 'hosts'} of {name}" for name, count in sorted(pod_types.items())
    )
    since = "" if waited_s < 1 else f" since {waited_s:.0f} s"
    return f"waiting for a free {wanted}{since}; the cluster has {has or f'no {kind} hosts'}"


class LineSplitter:
    """Cuts a stream of bytes into lines; a carriage return (a progress bar) ends a line too."""

    max_bytes: Final = 64 * 1024

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        text, held = self._rest + data, b""
        if text.endswith(b"\r"):  # its newline may come next
            text, held = text[:-1], b"\r"
        *whole, rest = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        while len(rest) > self.max_bytes:
            whole.append(rest[: self.max_bytes])
            rest = rest[self.max_bytes :]
        self._rest = rest + held
        return [line.decode(errors="replace") for line in whole]

    def end(self) -> list[str]:
        """Return the rest, a line without an end."""
        rest, self._rest = self._rest.removesuffix(b"\r"), b""
        return [rest.decode(errors="replace")] if rest else []
