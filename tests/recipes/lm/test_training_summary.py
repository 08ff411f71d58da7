"""Summary of a training's size and cost in numbers."""

from __future__ import annotations

import dataclasses

import pytest

from tradewind.recipes.lm.training_summary import TYPICAL_UTILIZATION, TrainingSummary, end_lines

FACTS = TrainingSummary("run", "LlamaConfig", 10**9, 1000, 1000 * 512, 2048, 6e9, 128, "TPU v4", 275e12)


def test_hours_reported_only_when_device_flops_known() -> None:
    flops = 6e9 * 1000 * 512 * 2048
    assert FACTS.flops == flops
    assert FACTS.hours == pytest.approx(flops / (128 * 275e12 * TYPICAL_UTILIZATION) / 3600)
    assert dataclasses.replace(FACTS, device_flops=None).hours is None
    assert dataclasses.replace(FACTS, flops_per_token=None).hours is None


def test_summary_of_continued_training_counts_own_steps() -> None:
    result = {"run_id": "run", "steps": 40, "train_loss": 2.0, "eval_loss": None, "eval_losses": {}}
    places = {"checkpoint": "c", "export": None}
    assert end_lines(result | places)[0] == "trained run: 40 steps, loss 2.000, validation loss not measured"
    assert end_lines(result | places | {"first_step": 30})[0].startswith(
        "trained run: 10 steps up to step 40, loss 2.000"
    )
