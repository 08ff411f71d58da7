"""An evaluation of Marin's on a real Ray slice: its driver, its pod, and the restart after a failure."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from tests.evaluation.conftest import LM_EVAL, TASKS
from tests.marin.checkouts import put, run
from tests.ray_jobs.ended_jobs import ended_job
from tests.runtime.driven import BRISK_S, result_of
from tests.serving.exports import tiny_export
from tests.support.claims import claimed, driver_arguments
from tests.support.shared_clusters import shared_cluster
from tradewind.evaluation.results import read_record
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.request import JobRequest
from tradewind.records.attempts import AttemptOutcome, attempt_folder, attempt_path, read_attempt
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import step_spec
from tradewind.steps import TpuSlice, resolve

pytestmark = pytest.mark.ray
FILE = """
from experiments.evals.evals import default_eval
from experiments.evals.resource_configs import SINGLE_TPU_V4_8
from marin.evaluation.evaluation_config import EvalTaskConfig
from marin.execution.executor import executor_main

tasks = [EvalTaskConfig("{tasks}/colors.yaml", shots, task_alias=f"colors_{{shots}}") for shots in (0, 1)]
if __name__ == "__main__":
    executor_main(steps=[default_eval("{root}/run/hf", SINGLE_TPU_V4_8, evals=tasks)])
"""


@pytest.mark.slow
@pytest.mark.long
def test_marins_evaluation_runs_on_its_slice(tmp_path: Path) -> None:
    tiny_export(tmp_path / "run/hf/step-10")
    put(tmp_path / "experiments/a.py", FILE.format(tasks=TASKS, root=tmp_path))
    (step,) = run(tmp_path, "a").calls[0].steps
    resolved = resolve([step], str(tmp_path / "store")).of(step)
    assert resolved.step.resources == TpuSlice("v4-8")
    attempt = claimed(
        resolved, step_spec(resolved, CodeFolder(tmp_path)), job="evaluation-on-slice", heartbeat_s=BRISK_S
    )
    words = ["python", "-u", "-m", "tradewind.runtime.run_step", *driver_arguments(attempt)]
    variables = {"PYTHONPATH": f"{LM_EVAL}{os.pathsep}{tmp_path}", "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    jobs = RayJobs(RayCluster("here", shared_cluster("slices").address))
    jobs.submit_or_attach(JobRequest("evaluation-on-slice", shlex.join(words), {"env_vars": variables}, num_cpus=0.0))
    ended_job(jobs, "evaluation-on-slice")
    ended = read_attempt(attempt_path(resolved.output_path, 1))
    log = Path(attempt_folder(resolved.output_path, 1), "driver.log").read_text()
    assert ended is not None and ended.outcome is AttemptOutcome.SUCCEEDED, log
    result = result_of(resolved.output_path)
    assert result["scores"].keys() == {"colors_0", "colors_1"}, json.dumps(result)
    assert read_record(resolved.output_path).tasks["colors_1"].num_fewshot == 1
    assert "task 2/2, colors_1: " in log
