"""The process on each host of a pod calls the step's function."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import ray_parts
from tests.runtime.driven import REPOSITORY, claim_step, result_of
from tests.support.claims import driver_arguments
from tests.support.waiting import limit_s
from tradewind.steps import ExecutorStep, Hosts, RemoteFunction, TpuSlice

pytestmark = pytest.mark.slow

NO_CLUSTER = {"RAY_ADDRESS": "127.0.0.1:9", "RAY_gcs_rpc_server_connect_timeout_s": "1"}


@pytest.mark.parametrize("resources", [TpuSlice("v4-16"), Hosts(2)], ids=["slice", "hosts"])
@pytest.mark.parametrize(
    "fn",
    [RemoteFunction(ray_parts.tells_its_process, {"num_cpus": 4}), ray_parts.ray_step_that_tells_its_process],
    ids=["remote", "Ray function"],
)
def test_ray_task_function_runs_in_host_process(tmp_path: Path, fn: Any, resources: Any) -> None:
    attempt = claim_step(ExecutorStep("s", fn, {}, resources=resources), tmp_path)
    command = [sys.executable, "-m", "tradewind.runtime.driver.run_function", *driver_arguments(attempt)]
    env = {**os.environ, **NO_CLUSTER, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, cwd=REPOSITORY, env=env) as process:
        try:
            assert process.wait(limit_s()) == 0
        finally:
            process.kill()
    assert result_of(attempt.spec["output_path"]) == process.pid
