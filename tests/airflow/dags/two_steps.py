"""An Airflow DAG of two steps, one below the other, in the worker."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tradewind import ExecutorStep, experiment_dag, on_airflow_worker, output_path_of, this_output_path


@dataclass(frozen=True)
class Config:
    output_path: str
    source: Any = None


def write(config: Config) -> None:
    Path(config.output_path, "made").touch()


HERE = on_airflow_worker()
first = ExecutorStep("two/first", write, Config(this_output_path()), resources=HERE)
second = ExecutorStep("two/second", write, Config(this_output_path(), output_path_of(first)), resources=HERE)
experiment_dag("two_steps", [second])
