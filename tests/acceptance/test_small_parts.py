"""Requirements of Marin's own ``test_executor_utils.py``, ``test_json_encoder.py`` and ``test_step_status.py``."""

from __future__ import annotations

import json
import logging
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tradewind.recipes.checkpoints.names import checkpoint_name
from tradewind.records.info_files import info_json
from tradewind.records.record import Status, read_status, write_status
from tradewind.steps import ExecutorStep, InputName, resolve, versioned


@pytest.mark.parametrize("slash", ["", "/"])
def test_checkpoint_and_hub_model_are_named(slash: str) -> None:
    path = f"gs://bucket/checkpoints/llama-8b-tootsie-phase2/checkpoints/step-730000{slash}"
    assert checkpoint_name(path) == "llama-8b-tootsie-phase2-730000"
    assert checkpoint_name(f"gs://bucket/train/llama-1a2b3c/checkpoints/step-10{slash}") == "llama-10"
    run = ExecutorStep("train/myrun", None, None)
    assert checkpoint_name(run / f"checkpoints/step-555000{slash}") == "myrun-555000"
    assert checkpoint_name("meta-llama/Meta-Llama-3.1-8B") == "Meta-Llama-3.1-8B"


@pytest.mark.parametrize("path", ["gs://bucket/run/step-1", "llama", "run/checkpoints/step-x", ""])
def test_another_path_is_refused(path: str) -> None:
    for given in (path, InputName(None, f"gs://{path}/x")):
        with pytest.raises(ValueError, match="Invalid path"):
            checkpoint_name(given)
    with pytest.raises(ValueError, match="Unknown type int"):
        checkpoint_name(5)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Config:
    spec: Any
    path: Path


@pytest.mark.slow
def test_partition_spec_and_path_are_encoded_as_texts(caplog: pytest.LogCaptureFixture) -> None:
    sharding = pytest.importorskip("jax.sharding")
    spec = sharding.PartitionSpec("data")
    value, expected = Config(spec, Path("a/b")), {"spec": str(spec), "path": "a/b"}
    assert expected["spec"] in ("PartitionSpec('data',)", "P('data',)"), "which of them depends on the version of JAX"
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        assert json.loads(info_json(value)) == expected
    assert not caplog.records
    step = ExecutorStep("s", None, {"value": versioned(value)})
    assert resolve([step], "/p").of(step).version["config"]["value"] == expected


def test_status_read_tolerates_concurrent_overwrite(tmp_path: Path) -> None:
    output, done = str(tmp_path / "out"), threading.Event()
    write_status(output, Status.RUNNING)

    def overwrite() -> None:
        while not done.is_set():
            for status in (Status.SUCCESS, Status.RUNNING):
                write_status(output, status)

    writer = threading.Thread(target=overwrite)
    writer.start()
    read: list[Status | None] = []
    try:
        while len(read) < 500 or len(set(read)) == 1:  # a busy machine may run only one of the threads for a while
            read.append(read_status(output))
    finally:
        done.set()
        writer.join()
    assert set(read) == {Status.SUCCESS, Status.RUNNING}
