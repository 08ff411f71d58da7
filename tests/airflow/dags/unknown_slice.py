"""An Airflow DAG that requires a slice type which does not exist."""

from tradewind import ExecutorStep, TpuSlice, experiment_dag


def train(config: None) -> None: ...


experiment_dag("unknown_slice", [ExecutorStep("train", train, None, resources=TpuSlice("v4-17"))])
