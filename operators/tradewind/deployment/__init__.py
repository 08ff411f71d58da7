"""What the Airflow that this runs in gives: its connections, its roots, what a task keeps between its tries."""
