"""An Airflow DAG of one step whose function raises an error."""

from tradewind import ExecutorStep, experiment_dag, versioned


def fail(config: dict[str, str]) -> None:
    print("about to fail")
    raise KeyError(config["value"])


failing = ExecutorStep("bad/failing", fail, {"value": versioned("the value")})
experiment_dag("failing", [failing])
