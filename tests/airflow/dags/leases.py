"""Airflow DAGs of steps in the worker, for what runs, plans and people's acts do to each other's turns."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, CronPartitionTimetable, task

from tradewind import (
    ExecutorStep,
    experiment_dag,
    on_airflow_worker,
    output_path_of,
    partition_key,
    run_param,
    this_output_path,
    versioned,
)
from tradewind.hooks.step_version import StepVersionHook

HERE = on_airflow_worker()


@dataclass(frozen=True)
class Config:
    output_path: str
    value: Any = None
    source: Any = None
    says: Any = "the same"
    gate: Any = None


def write(config: Config) -> None:
    """Write what it is told to, once the gate is open, and leave a line for each call outside the output."""
    while config.gate and not os.path.exists(config.gate):
        time.sleep(0.1)
    with Path(f"{config.output_path}.calls").open("a") as file:
        file.write("called\n")
    Path(config.output_path, "text").write_text(str(config.says))
    if config.says == "fail":
        raise ValueError("told to fail")


def chain(name: str, **params: Any) -> None:
    """Three steps, one after the other; what the first says is no part of its version."""
    first = ExecutorStep(
        f"{name}/first", write, Config(this_output_path(), versioned(name), None, run_param("says")), resources=HERE
    )
    second = ExecutorStep(
        f"{name}/second", write, Config(this_output_path(), None, output_path_of(first)), resources=HERE
    )
    third = ExecutorStep(
        f"{name}/third", write, Config(this_output_path(), None, output_path_of(second)), resources=HERE
    )
    experiment_dag(name, [third], params={"says": "the same"}, **params)


chain("chained")
chain("selected")
chain("told", asset_events_of_reused=True)

gated = ExecutorStep(
    "gated/shared",
    write,
    Config(this_output_path(), versioned(run_param("name")), None, run_param("says"), run_param("gate")),
    resources=HERE,
)
experiment_dag(
    "gated",
    [gated],
    schedule="@daily",
    catchup=False,
    params={"name": "", "says": "the same", "gate": ""},
    max_active_runs=32,
)

parted = ExecutorStep("parted/step", write, Config(this_output_path(), versioned(partition_key())), resources=HERE)
experiment_dag("parted", [parted], schedule=CronPartitionTimetable("0 0 * * *", timezone="UTC"), catchup=False)

with DAG("consumer", schedule=[Asset("told/third")]):

    @task
    def consume() -> None:
        print("woken")

    consume()

with DAG("plain_versions", params={"n": 1}):

    @task
    def plain(params: dict[str, Any] | None = None) -> str:
        config = {"n": versioned((params or {})["n"]), "out": this_output_path()}
        with StepVersionHook().step("plain/version", config) as step:
            Path(step.config["out"], "made").write_text(str(params))
            return step.output_path

    plain()
