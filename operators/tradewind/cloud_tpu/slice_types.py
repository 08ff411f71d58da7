"""Table of slice types, by name: generation, chips, hosts and topology; and Ray's labels of their hosts.

The names are Google Cloud's accelerator types. v4 and v5p names count TensorCores (two per chip), v5litepod and v6e
names count chips. Slices that this package never requests (custom topologies, v2, v3, v7x) are omitted. DAG files load
this module, so it imports only the standard library.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Final

SIMULATED_VARIABLE: Final = "TRADEWIND_SIMULATED_TPUS"
"""Set on the Ray nodes of a rehearsal, which simulate hosts with chips."""
RAY_LABELS: Final = "ray.io/"
"""Prefix of the labels that Ray itself sets."""
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
_CHIPS_PER_HOST: Final = 4  # on every slice with several hosts

# Chips -> topology of Google Cloud's slices.
_TORUS_3D: Final = {
    4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8", 512: "8x8x8",
    1024: "8x8x16", 2048: "8x16x16", 4096: "16x16x16", 6144: "16x16x24",
}  # fmt: skip
_MESH_2D: Final = {
    1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16",
}  # fmt: skip


class UnknownSliceTypeError(ValueError):
    """No slice type has this name."""


@dataclass(frozen=True)
class SliceType:
    """Composition of one slice of this type."""

    name: str
    generation: str
    """``v4``, ``v5p``, ``v5litepod`` or ``v6e``: the accelerator version of ``ray.util.tpu``."""
    chips: int
    hosts: int
    chips_per_host: int
    topology: str | None
    """Topology for ``ray.util.tpu``; None if it accepts none and so cannot reserve the type."""

    @property
    def is_multi_host(self) -> bool:
        return self.hosts > 1


def slice_type(name: str) -> SliceType:
    """Return the slice type ``name``, for example ``slice_type("v4-16")``."""
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
        SliceType("v4-4096", "v4", 2048, 512, 4, None),  # 8x16x16, which Ray's list for v4 lacks
        *_three_dimensional("v5p", largest=12288),
        *_two_dimensional("v5litepod", single_host_sizes=(1, 2, 4, 8)),
        *_two_dimensional("v6e", single_host_sizes=(1, 4, 8)),
    ]
    return {row.name: row for row in rows}


SLICE_TYPES: Final = _table()


def _nearest(name: str) -> list[str]:
    """Return up to three names of the same generation and similar size, if the generation is recognized."""
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


def head_resource(slice_type: str) -> str:
    """Return the resource of which worker 0 of such a slice has one."""
    return f"TPU-{slice_type}-head"


def is_head_resource(name: str) -> bool:
    """Return whether ``name`` is the ``head_resource`` of some type."""
    return bool(_HEAD_RESOURCE.fullmatch(name))
