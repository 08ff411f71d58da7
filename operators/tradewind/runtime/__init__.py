"""What runs on a cluster: the step driver, its child, the pod runner. Never imports Airflow."""
