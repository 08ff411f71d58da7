"""Stands where Airflow would be, on the import path of a cluster that has none."""

raise ImportError("There is no Airflow on a cluster.")
