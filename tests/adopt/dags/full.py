"""Two drivers hold all CPUs that their own Ray tasks wait for: an Airflow DAG."""

from airflow.sdk import DAG, task

with DAG("full"):

    @task.ray(num_cpus=2)
    def wait_for_itself(number: int) -> int:
        import ray

        return ray.get(ray.remote(num_cpus=1)(lambda: number).remote())

    wait_for_itself.expand(number=[1, 2])
