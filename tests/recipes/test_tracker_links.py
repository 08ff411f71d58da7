"""Links to the trackers that a stored config names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tradewind.plans.stored_versions import ConfigEntry, StepConfig
from tradewind.recipes.metrics.tracker_links import TrackerLink, tracker_links

OUT = "/store/train-abc123"


def config(**values: Any) -> StepConfig:
    keys = [path.replace("__", ".") for path in values]
    texts = [None if value is None else json.dumps(value) for value in values.values()]
    return StepConfig(entries=tuple(ConfigEntry(0, key, key, text, 0) for key, text in zip(keys, texts, strict=True)))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (config(), ()),
        (config(tensorboard=False, wandb=None), ()),
        (
            config(a__tensorboard=True),
            (TrackerLink("TensorBoard", f"{OUT}/tensorboard", note=f"tensorboard --logdir {OUT}/tensorboard"),),
        ),
        (
            config(wandb=None, wandb__project="p", wandb__entity="me", wandb__mode="online"),
            (TrackerLink("W&B", url="https://wandb.ai/me/p/runs/train-abc123"),),
        ),
        (
            config(wandb=None, wandb__project="p", wandb__mode="offline"),
            (TrackerLink("W&B", f"{OUT}/wandb", note="offline: wandb sync uploads it"),),
        ),
        (
            config(wandb=None, wandb__project="../x?", wandb__entity="me", wandb__mode="online"),
            (TrackerLink("W&B", note="run train-abc123 of project ../x?"),),
        ),
    ],
)
def test_trackers_of_a_config(given: StepConfig, expected: tuple[TrackerLink, ...]) -> None:
    assert tracker_links(given, OUT) == expected
