"""Airflow DAGs of many dates, of a step in the worker, and of a Marin experiment."""

from typing import Any

from shared_work import Config, write_call, write_call_and_wait

from tradewind import (
    ExecutorStep,
    executor_main,
    experiment_dag,
    night,
    on_airflow_worker,
    output_path_of,
    remote,
    this_output_path,
    versioned,
)


@remote(num_cpus=1)
def write_in_a_task(config: Config) -> dict[str, Any]:
    import ray

    return write_call(config) | {"task": ray.get_runtime_context().get_task_id()}


shared = ExecutorStep("dates/shared", write_call_and_wait, Config(this_output_path(), versioned("one for all")))
dated = ExecutorStep("dates/dated", write_call, Config(this_output_path(), versioned(night()), output_path_of(shared)))
experiment_dag("dates", [dated], schedule="@daily", timezone="Europe/Berlin", catchup=False)

in_worker = ExecutorStep("worker/step", write_call, Config(this_output_path()), resources=on_airflow_worker())
in_task = ExecutorStep("worker/ray_task", write_in_a_task, Config(this_output_path(), None, in_worker))
executor_main([in_task])
