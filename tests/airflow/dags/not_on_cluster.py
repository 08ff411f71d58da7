"""An Airflow DAG whose step function exists only on the Airflow machines."""

from only_in_airflow import work_elsewhere

from tradewind import ExecutorStep, experiment_dag

experiment_dag("not_on_cluster", [ExecutorStep("bad/not_on_cluster", work_elsewhere, None)])
