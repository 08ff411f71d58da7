"""The nightly pipeline in a small size: once, and planned with another learning rate."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.airflow.conftest import House, HouseRun

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1800)]

SMALL: dict[str, Any] = {"train_steps": 12, "model_size": "tiny", "sample_percent": 15}
STEPS = {"collection", "sample", "clean", "tokenizer", "tokens", "train", "evaluate", "report"}


@pytest.fixture(scope="module")
def first_run(house: House) -> HouseRun:
    return house.run("nightly_code_lm", SMALL)


def decided(run: HouseRun, decision: str) -> set[str]:
    return {task_id.removeprefix("code_lm_") for task_id, made in run.decisions().items() if made == decision}


def test_a_night_trains_evaluates_and_reports(house: House, first_run: HouseRun) -> None:
    assert first_run.state == "success", first_run.states()
    assert decided(first_run, "RUN") == STEPS
    results = json.loads((house.output("code_lm/evaluate") / "results.json").read_text())
    assert results["checkpoint"]["loss"] == pytest.approx(results["hf"]["loss"], rel=1e-3)
    assert 1 < results["checkpoint"]["bpb"] < 8
    assert len(results["sample"]) > 50
    report = house.output("code_lm/report")
    assert (report / "loss_curve.png").read_bytes().startswith(b"\x89PNG")
    assert f"{results['checkpoint']['loss']:.4f}" in (report / "report.md").read_text()
    hosts = sorted(path.name for path in (house.output("code_lm/train") / ".attempts/1").glob("host-*.log"))
    assert hosts == ["host-0.log", "host-1.log"]
    log = first_run.log("code_lm_train")
    assert log.count("step 12/12  validation loss") == 1


def test_another_learning_rate_runs_only_what_depends_on_it(house: House, first_run: HouseRun) -> None:
    run = house.run("nightly_code_lm", SMALL | {"learning_rate": 0.003, "dry_run": True})
    assert run.state == "success", run.states()
    assert decided(run, "RUN") == {"train", "evaluate", "report"}
    assert decided(run, "REUSE") == STEPS - {"train", "evaluate", "report"}
