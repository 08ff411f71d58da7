"""An Airflow DAG of one step whose function raises an error."""

from dataclasses import dataclass
from typing import Any

from tradewind import ExecutorStep, experiment_dag, this_output_path, versioned


@dataclass(frozen=True)
class Config:
    output_path: str
    value: Any = None


def fail(config: Config) -> None:
    print("about to fail")
    raise KeyError(config.value)


failing = ExecutorStep("bad/failing", fail, Config(this_output_path(), versioned("the value")))
experiment_dag("failing", [failing])
