"""The TPU table: names and shapes; Ray agrees with every topology in it."""

import pytest

from tradewind.cloud_tpu.slice_types import SLICE_TYPES, SliceType, UnknownSliceTypeError, slice_type


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v4-8", SliceType("v4-8", "v4", 4, 1, 4, "2x2x1")),
        ("v4-16", SliceType("v4-16", "v4", 8, 2, 4, "2x2x2")),
        ("v4-2048", SliceType("v4-2048", "v4", 1024, 256, 4, "8x8x16")),
        ("v5p-64", SliceType("v5p-64", "v5p", 32, 8, 4, "2x4x4")),
        ("v5litepod-1", SliceType("v5litepod-1", "v5litepod", 1, 1, 1, "1x1")),
        ("v5litepod-8", SliceType("v5litepod-8", "v5litepod", 8, 1, 8, "2x4")),
        ("v5litepod-256", SliceType("v5litepod-256", "v5litepod", 256, 64, 4, "16x16")),
        ("v6e-8", SliceType("v6e-8", "v6e", 8, 1, 8, "2x4")),
        ("v6e-16", SliceType("v6e-16", "v6e", 16, 4, 4, "4x4")),
    ],
)
def test_a_name_gives_the_shape(name, expected):
    assert slice_type(name) == expected


def test_every_type_has_as_many_chips_as_its_hosts_hold():
    for row in SLICE_TYPES.values():
        assert row.chips == row.hosts * row.chips_per_host, row
        assert row.is_multi_host == (row.hosts > 1)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("v4-17", "v4-16, v4-8 and v4-32"),
        ("v5e-16", "v5litepod-16, v5litepod-8 and v5litepod-4"),
        ("V6E-3", "v6e-4, v6e-1 and v6e-8"),
        ("v4", "v4-8, v4-16 and v4-32"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_valid_ones(name, nearest):
    with pytest.raises(UnknownSliceTypeError) as caught:
        slice_type(name)
    assert str(caught.value) == f"There is no TPU slice type {name!r}; the nearest valid names are {nearest}."
    for other in ("", "gpu", "a100-8", "v4-16 "):
        with pytest.raises(UnknownSliceTypeError, match="the nearest valid names are v"):
            slice_type(other)


@pytest.mark.slow
def test_ray_accepts_each_topology_with_same_name_and_hosts():
    from ray._private.accelerators.tpu import (
        TPUAcceleratorManager,
        get_chips_per_host,
        get_num_chips_from_topology,
        infer_tpu_pod_type_from_topology,
    )

    for row in SLICE_TYPES.values():
        if row.topology is None:
            continue
        assert TPUAcceleratorManager.is_valid_tpu_accelerator_topology(row.generation, row.topology), row
        assert infer_tpu_pod_type_from_topology(row.topology, row.generation) == row.name
        assert get_num_chips_from_topology(row.topology) == row.chips
        assert get_chips_per_host(row.topology, row.generation) == row.chips_per_host or row.hosts == 1, row
    assert [row.name for row in SLICE_TYPES.values() if row.topology is None] == ["v4-4096", "v5litepod-2"]
