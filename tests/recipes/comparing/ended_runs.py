"""Step outputs as a run leaves them, with or without a result."""

from __future__ import annotations

import json
import posixpath
from pathlib import Path
from typing import Any

from tradewind import ExecutorStep
from tradewind.attempts.step_lease import StepLease
from tradewind.records.attempts import AttemptError, AttemptOutcome
from tradewind.records.lease import Phase
from tradewind.records.lease_store import LeaseStore
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import step_spec
from tradewind.steps import ResolvedStep, resolve


def write_run(folder: Path, name: str, result: Any, config: Any = None, curve: str = "") -> str:
    """Write the output of a step that ended with this result; return its path."""
    step = resolve([ExecutorStep(name, posixpath.join, config or {})], str(folder)).steps[-1]
    return write_output(step, result, curve)


def write_output(step: ResolvedStep, result: Any = None, curve: str = "") -> str:
    """Write the output of ``step`` with its function's result and metrics lines; return its path."""
    leases, claim = _claim(step)
    if result is not None:
        Path(step.output_path, ".artifact.json").write_text(json.dumps(result))
    if curve:
        Path(step.output_path, "metrics.jsonl").write_text(curve)
    Path(step.output_path, "data").touch()
    store = LeaseStore(step.output_path)
    store.change(store.take_over(claim.attempt.job, "owner"), phase=Phase.COMMITTED, digest="d", witness="data")
    return leases.path


def write_failed_run(folder: Path, name: str, message: str) -> str:
    """Write the output of a step that failed with a ``ValueError``; return its path."""
    step = resolve([ExecutorStep(name, posixpath.join, {})], str(folder)).steps[-1]
    leases, claim = _claim(step)
    leases.end_unstarted(claim.attempt.job, AttemptOutcome.FAILED, AttemptError("ValueError", message))
    return leases.path


def _claim(step: ResolvedStep) -> tuple[StepLease, Any]:
    leases = StepLease(step, {"dag": "d"})
    claim = leases.claim(None, lambda: step_spec(step, CodeFolder(Path("/nowhere"))))
    assert claim is not None
    return leases, claim
