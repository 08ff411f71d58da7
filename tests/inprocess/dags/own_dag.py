"""Airflow DAGs of users, with groups of steps between other tasks; later runs reuse the outputs of earlier runs."""

from typing import Any

from airflow.sdk import DAG, task, task_group
from small_work import Text, write

from tradewind import (
    ExecutorStep,
    experiment_group,
    on_airflow_worker,
    output_path_of,
    run_param,
    this_output_path,
    versioned,
)

HERE = on_airflow_worker()


def chain(name: str, value: str) -> ExecutorStep:
    """Return the second of two steps in sequence; the text of the first is not part of its version."""
    text = Text(this_output_path(), versioned(run_param(value)), says=run_param("says"))
    first = ExecutorStep(f"{name}/first", write, text, resources=HERE)
    return ExecutorStep(f"{name}/second", write, Text(this_output_path(), source=output_path_of(first)), resources=HERE)


@task
def ingest(params: Any = None) -> list[str]:
    return [params["cutoff"]]


@task
def publish(paths: Any) -> Any:
    return paths


with DAG("own_dag", params={"cutoff": "monday", "says": "the same"}):
    group = experiment_group("train", [chain("own", "data")], values={"data": ingest()})
    publish(group.output)
    publish.override(task_id="publish_first")(group.output["own/first"])
    publish.override(task_id="always", trigger_rule="all_done")(group.output["own/second"])

with DAG("two_groups", params={"goes_on": True, "says": "the same"}):

    @task.short_circuit(ignore_downstream_trigger_rules=False)
    def choose(params: Any = None) -> bool:
        return bool(params["goes_on"])

    @task_group
    def outer() -> Any:
        return experiment_group("train", [chain("two/train", "number")], values={"number": 1.0})

    trained = outer()
    choose() >> trained
    evaluated = experiment_group(
        "evaluate", [chain("two/evaluate", "model")], values={"model": trained.output["two/train/second"]}
    )
    publish(evaluated.output["two/evaluate/second"])

with DAG("no_json_value", params={"says": "the same"}):

    @task
    def date(data_interval_end: Any = None, dag_run: Any = None) -> Any:
        return dag_run.run_after

    experiment_group("train", [chain("no_json", "at")], values={"at": date()})
