"""Airflow DAGs of steps in the worker; later runs reuse the outputs of earlier runs."""

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, CronPartitionTimetable, task
from small_work import Text, write

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


def step(name: str, value: Any = None, source: Any = None, says: Any = "the same") -> ExecutorStep:
    return ExecutorStep(name, write, Text(this_output_path(), value, source, says), resources=HERE)


def chain(name: str) -> None:
    """Define three steps in sequence; the text of the first is not part of its version."""
    first = step(f"{name}/first", versioned(name), says=run_param("says"))
    second = step(f"{name}/second", source=output_path_of(first))
    third = step(f"{name}/third", source=output_path_of(second))
    experiment_dag(name, [third], params={"says": "the same"})


chain("blocked")
chain("selected")
chain("chained")
experiment_dag("announced", [step("announced/step")], asset_events_of_reused=True)

parted = step("parted/step", versioned(partition_key()))
experiment_dag("parted", [parted], schedule=CronPartitionTimetable("0 0 * * *", timezone="UTC"), catchup=False)

with DAG("consumer", schedule=[Asset("announced/step")]):

    @task
    def consume() -> None:
        print("started")

    consume()

with DAG("plain_versions", params={"n": 1}):

    @task
    def plain(params: dict[str, Any] | None = None) -> str:
        config = {"n": versioned((params or {})["n"]), "out": this_output_path()}
        with StepVersionHook().step("plain/version", config) as step:
            Path(step.config["out"], "made").write_text(str(params))
            return step.output_path

    plain()
