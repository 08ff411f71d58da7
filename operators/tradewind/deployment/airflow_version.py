"""Refusal of an Airflow that is too old, before an operator fails in it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

MIN_AIRFLOW = (3, 3)


def check_airflow() -> None:
    """Refuse an Airflow without the task state store; a cluster that has no Airflow imports DAG files too.

    Raises:
        ImportError: The installed Airflow is older than ``MIN_AIRFLOW``.
    """
    try:
        found = version("apache-airflow-core")
    except PackageNotFoundError:
        return
    if tuple(int(part) for part in found.split(".")[:2]) < MIN_AIRFLOW:
        needed = ".".join(map(str, MIN_AIRFLOW))
        raise ImportError(
            f"airflow-provider-tradewind needs Airflow {needed} or newer, this is {found}: upgrade Airflow."
        )
