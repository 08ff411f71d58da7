"""A plain task with a version, whose worker ``params.dies`` kills right after its block, and its consumer."""

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, get_current_context, task

from tradewind import this_output_path, versioned
from tradewind.hooks.step_version import StepVersionHook

RETRIES = 2

with DAG(
    "plain_retries", params={"dies": False}, default_args={"retries": RETRIES, "retry_delay": timedelta(seconds=1)}
):

    @task
    def make(params: dict[str, Any] | None = None) -> None:
        dies = bool((params or {})["dies"])
        with StepVersionHook().step("plain/retried", {"dies": versioned(dies), "out": this_output_path()}) as step:
            Path(step.config["out"], "made").write_text("made")
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)

    @task
    def consume() -> None:
        context: Any = get_current_context()
        print("cleared", context["dag_run"].clear_number)

    make() >> consume()
