"""What a training will take, in numbers."""

from __future__ import annotations

import dataclasses

import pytest

from tradewind.recipes.lm.facts import USED, TrainingFacts

FACTS = TrainingFacts("run", "LlamaConfig", 10**9, 1000, 1000 * 512, 2048, 6e9, 128, "TPU v4", 275e12)


def test_hours_are_told_where_it_is_known_what_the_devices_can_do() -> None:
    flops = 6e9 * 1000 * 512 * 2048
    assert FACTS.flops == flops
    assert FACTS.hours == pytest.approx(flops / (128 * 275e12 * USED) / 3600)
    assert dataclasses.replace(FACTS, device_flops=None).hours is None
    assert dataclasses.replace(FACTS, flops_per_token=None).hours is None
