"""Stub that replaces Airflow on the import path of a cluster without Airflow."""

raise ImportError("There is no Airflow on a cluster.")
