"""Run steps in this process, one after another, with the records that a run would leave."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tradewind import ExecutorStep
from tradewind.attempts.step_lease import StepLease
from tradewind.records.lease import Phase
from tradewind.records.lease_store import LeaseStore
from tradewind.records.record import RecordState
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import STEP_VARIABLE, step_spec
from tradewind.steps import ResolvedStep, RunValues, resolve

CODE = CodeFolder(Path(__file__).parents[2])
DAGS = Path(__file__).parents[2] / "dags"


def load(name: str) -> ModuleType:
    """Import a DAG file as a cluster does."""
    spec = importlib.util.spec_from_file_location(name, DAGS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STEP_VARIABLE, "makes no DAG")
        spec.loader.exec_module(module)
    return module


class Maker:
    """Runs steps under one folder; ``made`` lists the names of the steps that it ran, in order."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.made: list[str] = []

    @contextmanager
    def using_ray(self) -> Iterator[Maker]:
        """Start Ray for the steps that use it."""
        import ray

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", str(self.store))
            patch.setenv("RAY_AUTH_MODE", "disabled")
            ray.init(num_cpus=2, include_dashboard=False, configure_logging=False)
            try:
                yield self
            finally:
                ray.shutdown()

    def make(self, step: ExecutorStep, **params: Any) -> Path:
        """Run ``step`` and its inputs with these params of the run; return its output path."""
        experiment = resolve([step], str(self.store), RunValues(params=params))
        for each in experiment.steps:
            self._make(each, each.step.fn, step_spec(each, CODE).load_config())
        return Path(experiment.of(step).output_path)

    def _make(self, step: ResolvedStep, function: Any, config: Any) -> None:
        lease = StepLease(step, {"script": "test"})
        record = lease.read()
        if record.state is RecordState.FINISHED:
            return
        claimed = lease.claim(record.lease, lambda: step_spec(step, CODE))
        assert claimed is not None and function is not None
        store = LeaseStore(step.output_path)
        held = store.take_over(claimed.attempt.job, "test")
        result = function(config)
        Path(step.output_path, ".artifact.json").write_text(json.dumps(result))
        store.change(held, phase=Phase.COMMITTED, digest=step.hash, witness=".artifact.json")
        self.made.append(step.name)
