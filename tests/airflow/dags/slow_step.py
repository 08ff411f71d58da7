"""An Airflow DAG of one step, which runs until a file exists."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tradewind import ExecutorStep, experiment_dag, run_param, this_output_path, versioned


@dataclass(frozen=True)
class Config:
    output_path: str
    name: Any
    until: Any
    """Path of the file; the step does not wait if it is empty."""


def work(config: Config) -> None:
    """Wait for the file; print a line before and after."""
    print("working", flush=True)
    while config.until and not Path(config.until).exists():
        time.sleep(0.1)
    Path(config.output_path, "made").touch()
    print("worked", flush=True)


slow = ExecutorStep("slow/step", work, Config(this_output_path(), versioned(run_param("name")), run_param("until")))
experiment_dag("slow_step", [slow], params={"name": "", "until": ""})
