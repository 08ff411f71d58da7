"""TPU slices that Levanter names."""

from __future__ import annotations

import dataclasses

import pytest

from tradewind.marin.legacy import modules

RAY_TPU = modules()["levanter.infra.ray_tpu"]


@pytest.mark.parametrize(
    "expected",
    [
        ("v4-8", 4, 1, 1, 4), ("v4-4096", 2048, 512, 512, 4),
        ("v5litepod-1", 1, 1, 1, 1), ("v5litepod-8", 8, 1, 1, 8),
        ("v5litepod-16", 16, 2, 4, 4), ("v5litepod-256", 256, 32, 64, 4),
        ("v5p-8", 4, 1, 1, 4), ("v5p-12288", 6144, 1536, 1536, 4),
        ("v6e-8", 8, 1, 1, 8), ("v6e-16", 16, 4, 4, 4),
    ],
)  # fmt: skip
def test_slice_has_chips_hosts_machines_and_chips_per_machine(expected: tuple[str, int, int, int, int]) -> None:
    found = RAY_TPU.get_tpu_config(expected[0])
    assert isinstance(found, RAY_TPU.TPUConfig) and dataclasses.astuple(found) == expected


def test_slice_types_are_unique_and_others_unknown() -> None:
    listed = [config.name for config in RAY_TPU.TPU_CONFIGS]
    assert len(set(listed)) == len(listed) == 39
    with pytest.raises(ValueError, match="Unknown TPU type: v4-12"):
        RAY_TPU.get_tpu_config("v4-12")
