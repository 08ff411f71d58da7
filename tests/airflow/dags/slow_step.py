"""An Airflow DAG of one step, which is at work until a file is there."""

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
    """The file; none, and it has nothing to wait for."""


def work(config: Config) -> None:
    """Wait for the file, and say so."""
    print("working", flush=True)
    while config.until and not Path(config.until).exists():
        time.sleep(0.1)
    Path(config.output_path, "made").touch()
    print("worked", flush=True)


slow = ExecutorStep("slow/step", work, Config(this_output_path(), versioned(run_param("name")), run_param("until")))
experiment_dag("slow_step", [slow], params={"name": "", "until": ""})
