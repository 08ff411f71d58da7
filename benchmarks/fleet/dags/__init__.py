"""DAG files of the benchmark."""
