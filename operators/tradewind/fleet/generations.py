"""What the fleet knows of each TPU generation besides the shapes of its slices, which ``cloud_tpu.slice_types`` has.

Named as people and the fleet file name them: Google's accelerator types call v5e ``v5litepod``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tradewind.cloud_tpu.slice_types import SLICE_TYPES, SliceType, slice_type


@dataclass(frozen=True)
class TpuGeneration:
    """One generation, and what clusters offer of it.

    Attributes:
        name: As the fleet file has it.
        runtime_version: The image of its TPU VMs.
        smallest: The smallest slice type that is offered, which a cluster's workers are unless it says otherwise.
        largest: The largest that is offered.
    """

    name: str
    runtime_version: str
    smallest: str
    largest: str

    @cached_property
    def offered(self) -> tuple[SliceType, ...]:
        """The slice types that clusters of this generation have, the smallest first."""
        least, most = slice_type(self.smallest), slice_type(self.largest)
        of_family = (known for known in SLICE_TYPES.values() if known.generation == least.generation)
        return tuple(known for known in of_family if least.chips <= known.chips <= most.chips)

    def has(self, kind: SliceType) -> bool:
        """Whether ``kind`` is a slice of this generation."""
        return kind.generation == slice_type(self.smallest).generation


GENERATIONS: Final = {
    generation.name: generation
    for generation in (
        TpuGeneration("v4", "tpu-ubuntu2204-base", "v4-8", "v4-4096"),
        TpuGeneration("v5e", "v2-alpha-tpuv5-lite", "v5litepod-4", "v5litepod-256"),
        TpuGeneration("v5p", "v2-alpha-tpuv5", "v5p-8", "v5p-2048"),
        TpuGeneration("v6e", "v2-alpha-tpuv6e", "v6e-4", "v6e-256"),
    )
}
