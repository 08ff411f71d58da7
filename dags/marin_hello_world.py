"""An experiment in Marin's way, unchanged, as an Airflow DAG: it lies in ``marin/``, as a checkout of Marin would."""

from tradewind.marin import marin_experiment

dags = marin_experiment(
    "marin/experiments/tutorials/hello_world.py", dag_id="marin_hello_world", tags=["tradewind", "example", "marin"]
)
