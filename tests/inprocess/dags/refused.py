"""Airflow DAGs of one step each with bad input; a run fails before it submits a job."""

from dataclasses import dataclass
from typing import Any

from tradewind import ExecutorStep, experiment_dag, this_output_path


@dataclass(frozen=True)
class Config:
    output_path: str


def work(config: Config) -> None: ...


def step(name: str, fn: Any = work, **kwargs: Any) -> ExecutorStep:
    return ExecutorStep(f"bad/{name}", fn, Config(this_output_path()), **kwargs)


experiment_dag("local_function", [step("local_function", lambda config: None)])
experiment_dag("unreachable", [step("unreachable", cluster="gone")], default_args={"retries": 0})
experiment_dag("no_such_cluster", [step("no_such_cluster", cluster="missing")])
experiment_dag("missing_prefix", [step("missing_prefix")], cluster="bare")
