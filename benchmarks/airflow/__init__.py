"""A real Airflow parses DAG files and runs DAGs whose steps are finished."""
