"""An Airflow DAG that asks for a slice type that does not exist."""

from tradewind import ExecutorStep, TpuSlice, experiment_dag


def train(config: None) -> None: ...


experiment_dag("unknown_slice", [ExecutorStep("train", train, None, resources=TpuSlice("v4-17"))])
