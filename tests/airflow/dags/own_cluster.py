"""An Airflow DAG of one step on a cluster that a test may kill."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tradewind import Cpu, ExecutorStep, experiment_dag, run_param, this_output_path, versioned


@dataclass(frozen=True)
class Config:
    output_path: str
    name: Any
    gate: Any


def work(config: Config) -> None:
    """Append a line at the start, and one at the end once the gate file exists."""
    with Path(f"{config.output_path}.calls").open("a") as file:
        file.write("started\n")
    while not os.path.exists(config.gate):
        time.sleep(0.1)
    Path(config.output_path, "made").write_text("made\n")
    with Path(f"{config.output_path}.calls").open("a") as file:
        file.write("ended\n")


config = Config(this_output_path(), versioned(run_param("name")), run_param("gate"))
step = ExecutorStep("own/step", work, config, resources=Cpu(0.1))
experiment_dag("own_cluster", [step], params={"name": "", "prefix": "", "gate": ""}, cluster="own_cluster")
