"""An Airflow DAG of one step on a cluster that a test may kill."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tradewind import Cpu, ExecutorStep, experiment_dag, run_param, this_output_path, versioned


@dataclass(frozen=True)
class Config:
    output_path: str
    name: Any


def work(config: Config) -> None:
    """Leave a line at the beginning and one at the end."""
    with Path(f"{config.output_path}.calls").open("a") as file:
        file.write("started\n")
    time.sleep(15)
    Path(config.output_path, "made").write_text("made\n")
    with Path(f"{config.output_path}.calls").open("a") as file:
        file.write("ended\n")


step = ExecutorStep("own/step", work, Config(this_output_path(), versioned(run_param("name"))), resources=Cpu(0.1))
experiment_dag("own_cluster", [step], params={"name": "", "prefix": ""}, cluster="own_cluster")
