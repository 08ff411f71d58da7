"""Airflow DAGs whose bad input is found only when they run."""

from dataclasses import dataclass
from typing import Any

from tradewind import ExecutorStep, experiment_dag, this_output_path, versioned


@dataclass(frozen=True)
class Config:
    output_path: str
    value: Any = None


def fail(config: Config) -> None:
    """A step's own error."""
    print("about to fail")
    raise KeyError(config.value)


def step(name: str, fn: Any = fail, **kwargs: Any) -> ExecutorStep:
    return ExecutorStep(f"bad/{name}", fn, Config(this_output_path(), versioned("the value")), **kwargs)


experiment_dag("failing", [step("failing")])
experiment_dag("local_function", [step("local_function", lambda config: None)])
experiment_dag("unreachable", [step("unreachable", cluster="gone")], default_args={"retries": 0})
experiment_dag("no_such_cluster", [step("no_such_cluster", cluster="missing")])
experiment_dag("missing_prefix", [step("missing_prefix")], cluster="bare")
