"""Tradewind: machine-learning pipelines as Airflow DAGs on Ray clusters of preemptible TPU slices."""

from tradewind._version import __version__

__all__ = ["__version__"]
