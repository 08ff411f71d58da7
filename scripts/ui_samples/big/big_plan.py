"""Airflow DAG of 1,000 steps, in a folder of its own, since each run reads all files of its folder three times."""

from __future__ import annotations

from sample_links import NOVEMBER, big_steps

from tradewind import experiment_dag

experiment_dag("big_plan", big_steps(NOVEMBER))
