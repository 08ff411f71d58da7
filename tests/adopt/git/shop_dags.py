"""An experiment and a function that use a package beside them: Airflow DAGs of a Git bundle."""

from airflow.sdk import DAG, task
from shop import prices, settings

from tradewind import ExecutorStep, experiment_dag, output_path_of, this_output_path, versioned

listed = ExecutorStep("prices", prices.price_list, {"price": versioned(settings.PRICE), "out": this_output_path()})
total = ExecutorStep("total", prices.add_up, {"prices": output_path_of(listed)})
experiment_dag("shop", steps=[total])

with DAG("shop_function"):

    @task.ray
    def commit() -> int:
        return settings.COMMIT

    commit()
