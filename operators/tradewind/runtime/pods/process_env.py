"""The pure part of running a pod: who has which rank, what each process finds in its environment, what we tell people.

Nothing in here talks to Ray, to a process or to a clock.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

ON_CPU: Final = {
    "JAX_PLATFORMS": "cpu",  # a step that asked for CPUs must not take the chips of the host that it lands on
    "TF_CPP_MIN_LOG_LEVEL": "3",  # on CPUs, XLA logs an error that is none for every compilation it finds again
    "CUDA_VISIBLE_DEVICES": "",  # nor its GPUs, which Ray 2.60 leaves visible to who has asked for none
}
_SIMULATED: Final = {
    **{name: value for name, value in ON_CPU.items() if name != "CUDA_VISIBLE_DEVICES"},
    "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
}
_ONE_DEVICE: Final = "--xla_force_host_platform_device_count=1"
# Left behind by an earlier multislice run, MEGASCALE_* hangs JAX. Ray narrows the chips of an actor that has not asked
# for all of a host's, and sets OMP_NUM_THREADS to the actor's CPU count: neither is meant for a process that has the
# whole host.
_CLEARED_PREFIX: Final = "MEGASCALE_"
_CLEARED: Final = frozenset({"OMP_NUM_THREADS", "TPU_VISIBLE_CHIPS"})
# Ray's narrowed bounds go with the chips; others are the machine's own, which GKE injects and libtpu needs there.
_CHIP_BOUNDS: Final = "TPU_CHIPS_PER_HOST_BOUNDS"
_BOUNDS: Final = frozenset({_CHIP_BOUNDS, "TPU_HOST_BOUNDS"})
_NARROWED_BOUNDS: Final[Mapping[str, int]] = {"1,1,1": 1, "1,2,1": 2}
"""Of a part of a host, as Ray writes them -> how many chips that is."""
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
    """CPUs, on a host of a rehearsal that only stands for one with TPUs or GPUs."""


@dataclass(frozen=True)
class ProcessRank:
    """Which of how many processes one is."""

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
    """What one host says of itself when its actor starts."""

    ip: str
    accelerator: Accelerator
    free_port: int
    """One that nobody listens on."""
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
    """The environment of a process, but for its place.

    ``accelerator``: what it computes on, which is none where its group has asked for none. ``keep_threads``: it does
    not have the whole host. ``chips``: how many TPU chips the host has.
    """
    stale = _BOUNDS if _NARROWED_BOUNDS.get(inherited.get(_CHIP_BOUNDS, ""), chips) != chips else frozenset()
    cleared = frozenset[str]() if keep_threads else _CLEARED | stale
    kept = {k: v for k, v in inherited.items() if not k.startswith(_CLEARED_PREFIX) and k not in cleared}
    simulated = _SIMULATED | {"XLA_FLAGS": f"{inherited.get('XLA_FLAGS', '')} {_ONE_DEVICE}".lstrip()}
    return {
        **kept,
        "PYTHONUNBUFFERED": "1",  # its lines are followed as they come
        **(ON_CPU if accelerator is Accelerator.NONE else {}),
        **(simulated if accelerator in (Accelerator.NONE, Accelerator.SIMULATED) else {}),
        **{k: v for k, v in given.items() if k not in _MEGASCALE},
    }


def rank_env(place: ProcessRank, *, is_tpu: bool) -> dict[str, str]:
    """What tells a process its place; several slices need all four MEGASCALE_* variables, and one none of them."""
    env = {
        "TRADEWIND_PROCESS_ID": str(place.rank),
        "TRADEWIND_NUM_PROCESSES": str(place.num_processes),
        "TRADEWIND_COORDINATOR": place.coordinator,
        "TRADEWIND_SLICE_ID": str(place.slice_id),
        "TRADEWIND_NUM_SLICES": str(place.num_slices),
    }
    if not is_tpu or place.num_slices == 1:
        return env
    return env | {
        "MEGASCALE_COORDINATOR_ADDRESS": f"{place.coordinator.rpartition(':')[0]}:{_MEGASCALE_PORT}",
        "MEGASCALE_NUM_SLICES": str(place.num_slices),
        "MEGASCALE_PORT": str(_MEGASCALE_PORT),
        "MEGASCALE_SLICE_ID": str(place.slice_id),
    }


def format_exit(exit_code: int) -> str:
    """``exited with code 3`` or ``was killed by SIGKILL``."""
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


def waiting_text(wanted: str, waited_s: float, pod_types: Mapping[str, int], kind: str = "TPU") -> str:
    """What the job log says while nothing is free; ``pod_types`` counts the live hosts of each slice type or GPU."""
    has = ", ".join(
        f"{count} {'host' if count == 1 else 'hosts'} of {name}" for name, count in sorted(pod_types.items())
    )
    since = "" if waited_s < 1 else f" since {waited_s:.0f} s"
    return f"waiting for a free {wanted}{since}; the cluster has {has or f'no {kind} hosts'}"


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
