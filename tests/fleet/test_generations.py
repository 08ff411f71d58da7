"""The fleet's TPU generations agree with Ray and the table of slice types."""

from __future__ import annotations

import pytest
from ray._private.accelerators import TPUAcceleratorManager

from tradewind.cloud_tpu.slice_types import SLICE_TYPES, slice_type
from tradewind.fleet.clusters import GENERATIONS, TpuGeneration


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=lambda generation: generation.name)
def test_offered_slices_span_smallest_to_largest_type(generation: TpuGeneration) -> None:
    offered = [kind.name for kind in generation.offered]
    assert (offered[0], offered[-1]) == (generation.smallest, generation.largest)
    assert all(generation.has(kind) for kind in generation.offered)
    assert all(TPUAcceleratorManager.is_valid_tpu_accelerator_type(name) for name in offered)
    assert len({kind.chips for kind in generation.offered}) == len(offered)


def test_every_generation_of_slice_types_is_one_of_the_fleets() -> None:
    named = {slice_type(generation.smallest).generation for generation in GENERATIONS.values()}
    assert named == {kind.generation for kind in SLICE_TYPES.values()}
