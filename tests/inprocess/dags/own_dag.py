"""Airflow DAGs of a user, with groups of steps between other tasks; later runs reuse the outputs of earlier runs."""

from airflow.sdk import DAG, task
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


def steps(name: str, value: str) -> list[ExecutorStep]:
    """Return two steps; the second reads the first, and the param ``says`` decides whether the first one fails."""
    text = Text(this_output_path(), versioned(run_param(value)), says=run_param("says"))
    first = ExecutorStep(f"{name}/first", write, text, resources=HERE)
    second = Text(this_output_path(), source=output_path_of(first))
    return [ExecutorStep(f"{name}/second", write, second, resources=HERE)]


@task
def ingest(params=None):
    return {"cutoff": params["cutoff"]}


@task
def publish(paths):
    return paths


with DAG("own_dag", params={"cutoff": "monday", "says": "the same"}):
    group = experiment_group("train", steps("own", "data"), values={"data": ingest()})
    publish(group.output)
    publish.override(task_id="publish_second", trigger_rule="all_done")(group.output["own/second"])
