"""An experiment whose file, run as a script, calls ``dag.test()`` as Airflow's documentation does."""

from __future__ import annotations

from tradewind import ExecutorStep, experiment_dag, on_airflow_worker, this_output_path


def work(config: dict[str, str]) -> None:
    with open(config["output"] + ".calls", "a") as calls:
        print("called", file=calls)


step = ExecutorStep("tested_by_script", work, {"output": this_output_path()}, resources=on_airflow_worker())
dag = experiment_dag("tested_by_script", [step])

if __name__ == "__main__":
    assert dag is not None
    run = dag.test()
