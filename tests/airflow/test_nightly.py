"""The nightly pipeline in a small size, over the night of a clock change and with a worse learning rate."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.airflow.conftest import NIGHTLY_ZONE, DagRun, Environment

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]

DAG = "nightly_code_lm"
SMALL: dict[str, Any] = {"train_steps": 4, "model_size": "tiny", "sample_percent": 15}
SHARED = {"collection", "tokenizer"}
AFTER_TOKENS = {"train", "evaluate", "report", "scores", "gate"}
NIGHTLY = {"sample", "clean", "tokens"} | AFTER_TOKENS
SHORT_NIGHT = "2026-03-29"


@pytest.fixture(scope="module")
def night(env: Environment) -> DagRun:
    """Return the run of the night in which the clocks go forward."""
    [run] = env.backfill(DAG, "2026-03-29T00:00+01:00", "2026-03-29T00:00+01:00", SMALL)
    assert run.state == "success", run.states()
    return run


def interval(run: DagRun) -> tuple[datetime, datetime]:
    """Return start and end of the run's data interval, in the pipeline's time zone."""
    fields = run.env.api.dag_run(run.dag_id, run.run_id)
    start, end = (datetime.fromisoformat(fields[f"data_interval_{side}"]) for side in ("start", "end"))
    return start.astimezone(ZoneInfo(NIGHTLY_ZONE)), end.astimezone(ZoneInfo(NIGHTLY_ZONE))


def hours(run: DagRun) -> float:
    start, end = (moment.astimezone(UTC) for moment in interval(run))
    return (end - start).total_seconds() / 3600


def decided(run: DagRun, decision: str) -> set[str]:
    return {task_id.removeprefix("code_lm_") for task_id, made in run.decisions().items() if made == decision}


def output(run: DagRun, name: str) -> Path:
    """Return the step's output path in the run's plan."""
    plan = run.env.api.xcom(run.dag_id, run.run_id, "plan")
    [path] = [step["output_path"] for step in plan["steps"] if step["name"] == f"code_lm/{name}"]
    return Path(path)


def loss(run: DagRun) -> float:
    return float(json.loads((output(run, "evaluate") / "results.json").read_text())["checkpoint"]["loss"])


def versions(env: Environment, name: str) -> int:
    return len(list(env.store.glob(f"code_lm/{name}-??????")))


def test_dst_change_night_is_like_others(night: DagRun) -> None:
    assert hours(night) == 23
    assert [moment.time().isoformat() for moment in interval(night)] == ["00:00:00", "00:00:00"]
    info = json.loads((output(night, "sample") / ".executor_info").read_text())
    assert info["config"]["night"] == SHORT_NIGHT
    assert decided(night, "RUN") == SHARED | NIGHTLY


def test_run_trains_evaluates_and_reports(night: DagRun) -> None:
    results = json.loads((output(night, "evaluate") / "results.json").read_text())
    assert results["checkpoint"]["loss"] == pytest.approx(results["hf"]["loss"], rel=1e-3)
    assert 1 < results["checkpoint"]["bpb"] < 8
    assert len(results["sample"]) > 50
    report = output(night, "report")
    assert (report / "loss_curve.png").read_bytes().startswith(b"\x89PNG")
    assert f"{results['checkpoint']['loss']:.4f}" in (report / "report.md").read_text()
    hosts = sorted(path.name for path in (output(night, "train") / ".attempts/1").glob("host-*.log"))
    assert hosts == ["host-0.log", "host-1.log"]


def test_lower_rate_trains_on_same_tokens_and_fails_gate(env: Environment, night: DagRun) -> None:
    noon_after = datetime(2026, 3, 30, 12, tzinfo=ZoneInfo(NIGHTLY_ZONE))
    run = env.begin(DAG, SMALL | {"learning_rate": 0.003}, noon_after)
    run.wait()
    states = run.states()
    assert {task for task, state in states.items() if state == "failed"} == {"code_lm_gate"}, states
    assert "not met with confidence" in run.log("code_lm_gate")  # in four steps a lower rate learns less
    assert interval(run) == interval(night)
    assert decided(run, "RUN") == AFTER_TOKENS
    assert decided(run, "REUSE") == SHARED | NIGHTLY - AFTER_TOKENS
    assert [versions(env, name) for name in ("tokens", "train", "report")] == [1, 2, 2]
    assert run.log("code_lm_train").count("step 4/4  validation loss") == 1
    assert loss(run) != loss(night)


def test_two_dates_train_two_models_of_one_collection(env: Environment) -> None:
    runs = env.backfill(DAG, "2026-03-30T00:00+02:00", "2026-03-31T00:00+02:00", SMALL)
    assert [run.state for run in runs] == ["success", "success"]
    assert sorted((interval(run)[0].date().isoformat(), hours(run)) for run in runs) == [
        ("2026-03-30", 24),
        ("2026-03-31", 24),
    ]
    assert all(decided(run, "RUN") - SHARED == NIGHTLY for run in runs)
    assert {name: env.attempts(f"code_lm/{name}") for name in SHARED} == dict.fromkeys(SHARED, 1)
    assert len({output(run, "train") for run in runs}) == 2
    assert len({loss(run) for run in runs}) == 2
