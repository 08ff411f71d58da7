"""Airflow DAGs of a sweep with three points, one of which a param mends, and a step that compares them."""

from airflow.sdk import DAG
from small_work import Point, measure

from tradewind import ExecutorStep, experiment_dag, experiment_group, on_airflow_worker, versioned
from tradewind.recipes.steps import compare

HERE = on_airflow_worker()

points = {
    f"rate={rate}": ExecutorStep(f"sweep/{rate}", measure, Point(versioned(rate)), resources=HERE)
    for rate in (0.1, 0.5, 2.0)
}
comparison = compare("sweep/table", points, metric="loss", resources=HERE)
experiment_dag("sweep", [comparison], params={"is_mended": False})

with DAG("sweep_group", params={"is_mended": False}):
    experiment_group("sweep", [comparison])
