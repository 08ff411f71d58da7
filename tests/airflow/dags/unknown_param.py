"""An Airflow DAG that refers to a param it does not define."""

from typing import Any

from tradewind import ExecutorStep, experiment_dag, run_param, versioned


def train(config: dict[str, Any]) -> None: ...


step = ExecutorStep("train", train, {"learning_rate": versioned(run_param("lr"))})
experiment_dag("unknown_param", [step], params={"rate": 0.1})
