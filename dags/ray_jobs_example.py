"""Airflow DAG of Ray jobs: two functions and a command that pass results on, without steps."""

import random

from airflow.sdk import DAG, task

from tradewind import Cpu
from tradewind.operators.ray_job import RayJobOperator

THROWS = 200_000


def count_hits(seed: int) -> int:
    """Count the random points of the unit square that are in the quarter circle."""
    generator = random.Random(seed)
    return sum(generator.random() ** 2 + generator.random() ** 2 < 1 for _ in range(THROWS))


with DAG("ray_jobs_example", catchup=False, tags=["tradewind", "example"], default_args={"retries": 3}):
    # A function with @task.ray runs on the cluster, without Airflow and without this file. It is sent with all that it
    # uses of the file, here `count_hits` and `THROWS`. Its return value becomes an XCom, as in any task.

    @task.ray(runs_on=Cpu(0.5))
    def estimate_pi(tasks: int) -> float:
        """Throw points in several parallel Ray tasks."""
        import ray  # on the cluster only; a DAG file should import nothing heavy

        count = ray.remote(num_cpus=0.5)(count_hits)
        hits = sum(ray.get([count.remote(seed) for seed in range(tasks)]))
        print(f"{hits} of {tasks * THROWS} points are in the circle")
        return 4 * hits / (tasks * THROWS)

    # `ds` is a value of Airflow's context: a parameter of that name, with default None, receives it.

    @task.ray(runs_on=Cpu(0.5))
    def judge(pi: float, ds: str | None = None) -> dict[str, str | float | None]:
        """Return how good the estimate is."""
        return {"date": ds, "error": round(abs(pi - 3.14159265), 4)}

    # A command runs in a shell on the cluster. Its arguments are templates, and its links lead to the Ray dashboard.

    judged = judge(estimate_pi(tasks=8))
    report = RayJobOperator(
        task_id="report",
        entrypoint="echo \"On {{ ti.xcom_pull(task_ids='judge')['date'] }}, pi was off by $PI_ERROR.\"",
        runtime_env={"env_vars": {"PI_ERROR": "{{ ti.xcom_pull(task_ids='judge')['error'] }}"}},
        runs_on=Cpu(0.5),
        metadata={"purpose": "example"},
    )
    judged >> report
