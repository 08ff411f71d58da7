"""Whose a job is, by its metadata: a task's, which goes on with it by itself, or a person's.

What a job is called, and who could have submitted it, is not asked: only what was written down as it was submitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

AIRFLOW_DAG: Final = "airflow_dag"
AIRFLOW_RUN: Final = "airflow_run"
AIRFLOW_TASK: Final = "airflow_task"
AIRFLOW_WAITS: Final = "airflow_waits"
STEP: Final = "step"
OUTPUT_PATH: Final = "output_path"
USER: Final = "user"
_USER_KEYS: Final = (USER, "owner")
_NOBODY: Final = "-"


def is_gone_on_with(metadata: Mapping[str, str]) -> bool:
    """Whether somebody makes the next attempt when this job is lost: a task that waits for it, or a step's lease.

    Any Airflow's, not only this one's. A job whose task does not wait has nobody, like a person's.
    """
    is_awaited = AIRFLOW_TASK in metadata and metadata.get(AIRFLOW_WAITS) == "yes"
    return is_awaited or (STEP in metadata and OUTPUT_PATH in metadata)


def owner_of(metadata: Mapping[str, str]) -> str:
    """Whose job it is, for people."""
    if AIRFLOW_TASK in metadata:
        run, dag = metadata.get(AIRFLOW_RUN, "?"), metadata.get(AIRFLOW_DAG, "?")
        return f"task {metadata[AIRFLOW_TASK]} of run {run} of {dag}"
    if STEP in metadata and OUTPUT_PATH in metadata:
        return f"step {metadata[STEP]}"
    return next((metadata[key] for key in _USER_KEYS if metadata.get(key)), _NOBODY)
