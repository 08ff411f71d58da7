"""Requirement of Marin's own ``test_json_encoder.py``: library values become their text."""

from __future__ import annotations

import json
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tradewind.records.info_files import info_json
from tradewind.steps import ExecutorStep, resolve, versioned

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Config:
    spec: Any
    path: Path


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
