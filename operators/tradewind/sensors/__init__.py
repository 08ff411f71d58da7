from tradewind.deployment.airflow_version import check_airflow

check_airflow()
