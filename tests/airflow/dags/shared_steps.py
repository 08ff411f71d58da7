"""Airflow DAGs of many dates, of a step in the worker, and of an experiment written for Marin."""

import os
import time
from dataclasses import dataclass
from typing import Any

import fsspec

from tradewind import (
    ExecutorStep,
    executor_main,
    experiment_dag,
    night,
    on_airflow_worker,
    output_path_of,
    remote,
    run_param,
    this_output_path,
    versioned,
)


@dataclass(frozen=True)
class Config:
    output_path: str
    value: Any = None
    source: Any = None


def write(config: Config) -> dict[str, Any]:
    """Leave a line for each call; two calls at once would leave two."""
    with fsspec.open(f"{config.output_path}/calls", "a") as file:
        file.write(f"{config.value}\n")
    return {"value": str(config.value), "pid": os.getpid(), "parent": os.getppid()}


def write_and_wait(config: Config) -> None:
    """Stay at work until the test, which sees all dates, says that they are there."""
    write(config)
    while not os.path.exists(f"{config.output_path}/all_are_here"):
        time.sleep(0.1)


@remote(num_cpus=1)
def write_in_a_task(config: Config) -> dict[str, Any]:
    import ray

    return write(config) | {"task": ray.get_runtime_context().get_task_id()}


shared = ExecutorStep("dates/shared", write_and_wait, Config(this_output_path(), versioned("one for all")))
dated = ExecutorStep("dates/dated", write, Config(this_output_path(), versioned(night()), output_path_of(shared)))
experiment_dag("dates", [dated], schedule="@daily", timezone="Europe/Berlin", catchup=False)

params = ExecutorStep("params/step", write, Config(this_output_path(), versioned(run_param("x"))))
experiment_dag("params", [params], params={"x": 1.0})

in_worker = ExecutorStep("worker/step", write, Config(this_output_path()), resources=on_airflow_worker())
in_task = ExecutorStep("worker/ray_task", write_in_a_task, Config(this_output_path(), None, in_worker))
executor_main([in_task])
