"""Local Airflow and Ray processes."""
