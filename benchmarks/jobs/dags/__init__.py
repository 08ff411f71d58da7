"""The DAG files of the jobs benchmark, one for each provider; each is read by that provider's own Airflow."""
