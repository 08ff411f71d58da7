"""Airflow DAGs of steps, most in the worker, to test how runs, plans and users affect each other's claims."""

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task
from shared_work import Config, write, write_call, write_call_and_wait

from tradewind import (
    ExecutorStep,
    experiment_dag,
    night,
    on_airflow_worker,
    output_path_of,
    run_param,
    this_output_path,
    versioned,
)
from tradewind.hooks.step_version import StepVersionHook

HERE = on_airflow_worker()


def chain(name: str) -> None:
    """Define three steps in sequence; the text of the first is not part of its version."""
    step = ExecutorStep(
        f"{name}/first", write, Config(this_output_path(), versioned(name), None, run_param("says")), resources=HERE
    )
    for after in ("second", "third"):
        config = Config(this_output_path(), None, output_path_of(step))
        step = ExecutorStep(f"{name}/{after}", write, config, resources=HERE)
    experiment_dag(name, [step], params={"says": "the same"})


chain("chained")

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

shared = ExecutorStep("dates/shared", write_call_and_wait, Config(this_output_path(), versioned("one for all")))
dated = ExecutorStep("dates/dated", write_call, Config(this_output_path(), versioned(night()), output_path_of(shared)))
experiment_dag("dates", [dated], schedule="@daily", timezone="Europe/Berlin", catchup=False)

with DAG("plain_versions", params={"n": 1}):

    @task
    def plain(params: dict[str, Any] | None = None) -> str:
        config = {"n": versioned((params or {})["n"]), "out": this_output_path()}
        with StepVersionHook().step("plain/version", config) as step:
            Path(step.config["out"], "made").write_text(str(params))
            return step.output_path

    plain()
