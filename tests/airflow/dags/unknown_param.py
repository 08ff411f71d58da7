"""An Airflow DAG that refers to a param it does not define."""

from dataclasses import dataclass
from typing import Any

from tradewind import ExecutorStep, experiment_dag, run_param, versioned


@dataclass(frozen=True)
class Config:
    learning_rate: Any


def train(config: Config) -> None: ...


experiment_dag(
    "unknown_param", [ExecutorStep("train", train, Config(versioned(run_param("lr"))))], params={"rate": 0.1}
)
