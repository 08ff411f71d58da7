"""A slice type's name says all about its shape: generation, chips, hosts, topology. This is the only table of them.

The names are Google Cloud's accelerator types. v4 and v5p names count TensorCores (two per chip), v5litepod and v6e
names count chips. Slices that this package never asks for (custom topologies, v2, v3, v7x) are left out. Only the
standard library is imported here, because DAG files load this module.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Final

SIMULATED_VARIABLE: Final = "TRADEWIND_SIMULATED_TPUS"
"""Set on the Ray nodes of a rehearsal, which stand for hosts with chips and have none."""
_CHIPS_PER_HOST: Final = 4  # on every slice of more than one host

# Chips -> topology, as Google Cloud lays the slice out.
_TORUS_3D: Final = {
    4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8", 512: "8x8x8",
    1024: "8x8x16", 2048: "8x16x16", 4096: "16x16x16", 6144: "16x16x24",
}  # fmt: skip
_MESH_2D: Final = {
    1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16",
}  # fmt: skip


class UnknownSliceTypeError(ValueError):
    """No slice has this name."""


@dataclass(frozen=True)
class SliceType:
    """What one slice of this type consists of."""

    name: str
    generation: str
    """``v4``, ``v5p``, ``v5litepod`` or ``v6e``; what ``ray.util.tpu`` calls the accelerator version."""
    chips: int
    hosts: int
    chips_per_host: int
    topology: str | None
    """What ``ray.util.tpu`` takes as topology; None where it takes none, so that the type cannot be reserved by it."""

    @property
    def is_multi_host(self) -> bool:
        return self.hosts > 1


def slice_type(name: str) -> SliceType:
    """The slice type called ``name``, for example ``slice_type("v4-16")``."""
    try:
        return SLICE_TYPES[name]
    except KeyError:
        names = _nearest(name)
        listed = ", ".join(names[:-1]) + " and " + names[-1]
        raise UnknownSliceTypeError(
            f"There is no TPU slice type {name!r}; the nearest valid names are {listed}."
        ) from None


def _three_dimensional(generation: str, largest: int) -> list[SliceType]:
    return [
        SliceType(f"{generation}-{2 * chips}", generation, chips, chips // _CHIPS_PER_HOST, _CHIPS_PER_HOST, topology)
        for chips, topology in _TORUS_3D.items()
        if 2 * chips <= largest
    ]


def _two_dimensional(generation: str, single_host_sizes: tuple[int, ...]) -> list[SliceType]:
    single = [SliceType(f"{generation}-{n}", generation, n, 1, n, _MESH_2D.get(n)) for n in single_host_sizes]
    several = [
        SliceType(f"{generation}-{n}", generation, n, n // _CHIPS_PER_HOST, _CHIPS_PER_HOST, topology)
        for n, topology in _MESH_2D.items()
        if n >= 16
    ]
    return single + several


def _table() -> dict[str, SliceType]:
    rows = [
        *_three_dimensional("v4", largest=2048),
        SliceType("v4-4096", "v4", 2048, 512, 4, None),  # 8x16x16, which Ray's list for v4 does not have
        *_three_dimensional("v5p", largest=12288),
        *_two_dimensional("v5litepod", single_host_sizes=(1, 2, 4, 8)),
        *_two_dimensional("v6e", single_host_sizes=(1, 4, 8)),
    ]
    return {row.name: row for row in rows}


SLICE_TYPES: Final = _table()


def _nearest(name: str) -> list[str]:
    """Up to three names: of the same generation and near in size, if the generation can be told."""
    generation, _, size = name.strip().lower().partition("-")
    generation = {"v5e": "v5litepod", "v5lite": "v5litepod"}.get(generation, generation)
    family = [row.name for row in SLICE_TYPES.values() if row.generation == generation]
    if not family:
        return difflib.get_close_matches(name.lower(), SLICE_TYPES, n=3, cutoff=0.0)
    if not size.isdecimal():
        return family[:3]
    wanted = int(size)
    return sorted(family, key=lambda candidate: (abs(_size(candidate) - wanted), _size(candidate)))[:3]


def _size(name: str) -> int:
    return int(name.rpartition("-")[2])


# What Ray calls the hosts of TPU slices: the labels of their nodes, and the resource of which a slice has one.

RAY_LABELS: Final = "ray.io/"
"""What the labels begin with that Ray itself gives."""
TPU_LABELS: Final = "ray.io/tpu-"
NODE_ID_LABEL: Final = "ray.io/node-id"
SLICE_NAME_LABEL: Final = "ray.io/tpu-slice-name"
WORKER_ID_LABEL: Final = "ray.io/tpu-worker-id"
"""The number of a host in its slice."""
POD_TYPE_LABEL: Final = "ray.io/tpu-pod-type"
"""The slice type, such as ``v4-16``."""
TOPOLOGY_LABEL: Final = "ray.io/tpu-topology"
ACCELERATOR_TYPE_LABEL: Final = "ray.io/accelerator-type"

_HEAD_RESOURCE: Final = re.compile(r"TPU-.+-head")


def head_resource(slice_type: str) -> str:
    """What worker 0 of a slice of this type has one of."""
    return f"TPU-{slice_type}-head"


def is_head_resource(name: str) -> bool:
    """Whether ``head_resource`` gives this for some type."""
    return bool(_HEAD_RESOURCE.fullmatch(name))
