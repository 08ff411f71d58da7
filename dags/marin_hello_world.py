"""Airflow DAG of an unchanged Marin experiment; ``marin/`` is laid out like a checkout of Marin."""

from tradewind.marin import marin_experiment

dags = marin_experiment(
    "marin/experiments/tutorials/hello_world.py", dag_id="marin_hello_world", tags=["tradewind", "example", "marin"]
)
