"""Reports of a training beside its metrics file: TensorBoard in a bucket, W&B without a network."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from tests.support.fork_server import PreparedPython
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage

REPORT = """
import sys
from tradewind.recipes.metrics.trackers import WandbOptions, tensorboard_config, wandb_config

for config in (tensorboard_config(sys.argv[1], 5), wandb_config(WandbOptions("project"), sys.argv[2])):
    tracker = config.init("train-123")
    for step in range(5, 10):
        tracker.log({"train/loss": 1.0 / (1 + step)}, step=step)
    tracker.finish()
"""


@pytest.mark.slow
def test_tensorboard_written_to_bucket_and_wandb_offline(
    cloud: LocalCloudStorage, python: PreparedPython, tmp_path: Path
) -> None:
    local = tmp_path / "train-123"
    env = {"GOOGLE_CLOUD_PROJECT": "p", "HOME": str(tmp_path), "WANDB_API_KEY": "", "STORAGE_EMULATOR_HOST": cloud.url}
    program = python.start(REPORT, "gs://bucket/train-123", str(local), env=env)
    out, errors = program.communicate()
    assert program.returncode == 0, errors[-3000:]

    store = fsspec.filesystem("gs")
    store.invalidate_cache()
    [events] = store.find("bucket/train-123/tensorboard")
    assert "events.out.tfevents." in events
    assert store.cat_file(events).count(b"train/loss") == 5

    [run] = (local / "wandb").glob("offline-run-*-train-123")
    assert list(run.glob("run-*.wandb"))
    assert "wandb sync" in errors + out
