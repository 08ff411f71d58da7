"""``levanter.infra.ray_tpu``: TPU slice types by name, with chips, hosts and machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tradewind.marin.legacy.classes import builder

__all__ = ["TPU_CONFIGS", "get_tpu_config"]

_PER_MACHINE: Final = 4
_SMALL: Final[Mapping[str, tuple[int, ...]]] = {"v5litepod": (1, 2, 4, 8), "v6e": (1, 4, 8)}
"""Slices with all chips on one machine, by generation."""
_LARGE: Final[Mapping[str, tuple[int, ...]]] = {
    "v4": tuple(8 << power for power in range(10)),
    "v5litepod": (16, 32, 64, 128, 256),
    "v5p": (*(8 << power for power in range(11)), 12288),
    "v6e": (16, 32, 64, 128, 256),
}
_COUNTED_IN_CORES: Final = ("v4", "v5p")
_TWO_MACHINES_A_HOST: Final = ("v5litepod",)


def _slices() -> Iterator[Any]:
    made = builder().find("levanter.infra.ray_tpu.TPUConfig")
    for generation, sizes in _LARGE.items():
        for chips in _SMALL.get(generation, ()):
            yield made(f"{generation}-{chips}", chips, 1, 1, chips)
        for size in sizes:
            chips = size // 2 if generation in _COUNTED_IN_CORES else size
            machines = chips // _PER_MACHINE
            hosts = machines // 2 if generation in _TWO_MACHINES_A_HOST else machines
            yield made(f"{generation}-{size}", chips, hosts, machines, _PER_MACHINE)


TPU_CONFIGS: Final = list(_slices())


def get_tpu_config(tpu_type: str) -> Any:
    """Return the slice type of that name.

    Raises:
        ValueError: No slice type has that name.
    """
    found = next((config for config in TPU_CONFIGS if config.name == tpu_type), None)
    if found is None:
        raise ValueError(f"Unknown TPU type: {tpu_type}")
    return found
