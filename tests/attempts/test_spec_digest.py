"""A driver runs only the claimed spec, even if another process changed the bucket since."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.claims import claimed, driver_arguments
from tradewind.attempts.decisions import NextAction, next_action
from tradewind.attempts.spec_digest import EXIT_SPEC_CHANGED, spec_digest
from tradewind.records.attempts import Attempt, attempt_path, write_attempt
from tradewind.records.lease import Phase
from tradewind.records.record import RecordState, read_record
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import StepSpec, step_spec
from tradewind.steps import ExecutorStep, ResolvedStep, on_airflow_worker, resolve, this_output_path
from tradewind.tasks.attempt_runner import process_ending, run_in_worker, to_job_result

REPOSITORY = Path(__file__).parents[2]
LOGGER = logging.getLogger(__name__)


def write_mark(config: dict[str, Any]) -> None:
    Path(config["output"], "mark").write_text("claimed")


def claim_at(store: Path, **fields: Any) -> tuple[ResolvedStep, Attempt]:
    made = ExecutorStep("s", write_mark, {"output": this_output_path()}, **fields)
    step = resolve([made], str(store)).of(made)
    return step, claimed(step, step_spec(step, CodeFolder(REPOSITORY)))


def tamper(attempt: Attempt, store: Path) -> None:
    evil = {"function": "os:system", "config": f"touch {store}/ran"}
    write_attempt(attempt.spec["output_path"], replace(attempt, spec={**attempt.spec, **evil}))


@pytest.mark.slow
@pytest.mark.parametrize("module", ["run_step", "driver.run_function", "driver.run_preflight"])
def test_spec_changed_after_claim_is_refused_and_not_run(tmp_path: Path, module: str) -> None:
    step, attempt = claim_at(tmp_path)
    tamper(attempt, tmp_path)
    command = [sys.executable, "-m", f"tradewind.runtime.{module}", *driver_arguments(attempt)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_SPEC_CHANGED
    assert "is not what was claimed" in done.stdout and "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "ran").exists()
    lease = read_record(step.output_path).lease
    assert lease is not None and lease.phase is Phase.CLAIMED and lease.counter == 1
    assert next_action(lease, lease.job, to_job_result(process_ending(EXIT_SPEC_CHANGED))) is NextAction.SPEC_CHANGED


def test_driver_without_digest_runs_nothing(tmp_path: Path) -> None:
    _, attempt = claim_at(tmp_path)
    command = [sys.executable, "-m", "tradewind.runtime.run_step", driver_arguments(attempt)[0]]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_SPEC_CHANGED and "digest of the spec is missing" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("change", ["tampered", "cut off", "gone"])
def test_worker_step_runs_claimed_spec_despite_changed_bucket(tmp_path: Path, change: str) -> None:
    step, attempt = claim_at(tmp_path, resources=on_airflow_worker())
    file = Path(attempt_path(step.output_path, 1))
    if change == "tampered":
        tamper(attempt, tmp_path)
    elif change == "cut off":
        file.write_text(file.read_text()[:50])
    else:
        file.unlink()
    assert run_in_worker(attempt, REPOSITORY, LOGGER) == 0
    assert not (tmp_path / "ran").exists()
    assert Path(step.output_path, "mark").read_text() == "claimed"
    assert read_record(step.output_path).state is RecordState.FINISHED


def test_spec_digest_is_equal_before_write_and_after_read() -> None:
    config = {"b": [float("nan"), 1e-7], "a": "ä\ud800"}
    spec = StepSpec("s", "s-abcdef", "/o", "m:f", {"num_cpus": 1}, config, {"kind": "cpu"}, True, resumable=("a", "b"))
    assert spec_digest(spec.to_json()) == spec_digest(json.loads(json.dumps(spec.to_json())))
