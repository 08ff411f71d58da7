"""An Airflow DAG of one step, which takes its time."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tradewind import ExecutorStep, experiment_dag, run_param, this_output_path, versioned


@dataclass(frozen=True)
class Config:
    output_path: str
    name: Any
    seconds: Any


def work(config: Config) -> None:
    """Sleep, and say so."""
    print("working", flush=True)
    time.sleep(config.seconds)
    Path(config.output_path, "made").touch()
    print("worked", flush=True)


slow = ExecutorStep("slow/step", work, Config(this_output_path(), versioned(run_param("name")), run_param("seconds")))
experiment_dag("slow_step", [slow], params={"name": "", "seconds": 300})
