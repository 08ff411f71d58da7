"""Airflow and Ray on this machine."""
