"""Airflow DAGs of one step that runs until a file exists: on the shared cluster, and on one that a test may kill."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tradewind import Cpu, ExecutorStep, experiment_dag, run_param, this_output_path, versioned


@dataclass(frozen=True)
class Config:
    output_path: str
    name: Any
    until: Any
    """Path of the file; the step does not wait if it is empty."""


def work(config: Config) -> None:
    """Wait for the file; print a line before and after, and append one to a file beside the output."""
    with Path(f"{config.output_path}.calls").open("a", buffering=1) as calls:
        print("working", flush=True)
        calls.write("started\n")
        while config.until and not Path(config.until).exists():
            time.sleep(0.1)
        Path(config.output_path, "made").touch()
        calls.write("ended\n")
        print("worked", flush=True)


config = Config(this_output_path(), versioned(run_param("name")), run_param("until"))
experiment_dag("slow_step", [ExecutorStep("slow/step", work, config)], params={"name": "", "until": ""})
own = ExecutorStep("own/step", work, config, resources=Cpu(0.1))
experiment_dag("own_cluster", [own], params={"name": "", "prefix": "", "until": ""}, cluster="own_cluster")
