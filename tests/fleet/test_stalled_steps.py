"""Stalled steps among the jobs of a cluster's head."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.runtime.test_stalls import put, running_attempt
from tradewind.fleet.stalled_steps import StalledStep, new_stalls, stalled_steps
from tradewind.ray_jobs.details import JobDetails
from tradewind.storage import Roots


def step_job(output: str, job: str = "job", status: str = "RUNNING") -> JobDetails:
    task = {"airflow_dag": "nightly", "airflow_run": "r1", "airflow_task": "train"}
    return JobDetails(job, status, metadata={"step": "train@abc", "output_path": output, **task})


def test_stalled_step_names_its_task(tmp_path: Path) -> None:
    now = time.time()
    output = running_attempt(tmp_path, started_at=now - 9e4)
    put(output, "metrics.jsonl", json.dumps({"step": 7, "time": now - 1200}) + "\n")
    inside, jobs = Roots.of([str(tmp_path)]), [step_job(output)]
    [found] = stalled_steps("here", jobs, inside, now=now)
    assert (found.step, found.dag_id, found.run_id, found.task_id) == ("train@abc", "nightly", "r1", "train")
    task = "task train of run r1 of nightly"
    assert str(found) == f"Step train@abc on here, {task}: no step for 20 min (limit 15 min). Output: {output}"
    outside = Roots.of([str(tmp_path / "elsewhere")])
    assert stalled_steps("here", jobs, outside, now=now) == []
    others = [step_job(output, "of-an-earlier-attempt"), step_job(output, status="PENDING"), JobDetails("x", "RUNNING")]
    assert stalled_steps("here", others, inside, now=now) == []


def test_stall_is_reported_once_for_each_job() -> None:
    first, second = (StalledStep("here", "train", job, "/x", "step", 0, 1200, 900) for job in ("one", "two"))
    assert new_stalls([first, second], ["one"]) == [second]
    assert new_stalls([first, second], ["one", "two"]) == []
