"""This process's Airflow installation: connections, roots, and what a task stores between tries."""
