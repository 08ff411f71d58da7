"""A real Airflow: parsing DAG files, and runs of DAGs in which nothing is left to do."""
