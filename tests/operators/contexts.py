"""The parts of Airflow's task context that Tradewind's operators read."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from airflow.sdk import DAG

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)


class Notes(dict[str, Any]):
    """Entries of a task in Airflow's task state store."""

    set = dict.__setitem__


def context_of(dag: DAG, task_id: str = "t") -> Any:
    """Return the context of the first try of a task of ``dag``, in a run without a plan."""
    names: dict[str, Any] = {"dag_id": dag.dag_id, "run_id": "r", "task_id": task_id, "map_index": -1}
    ti = SimpleNamespace(**names, try_number=1, max_tries=3)
    ti.xcom_push = ti.xcom_pull = lambda **_: None
    run = SimpleNamespace(
        data_interval_start=None, data_interval_end=None, partition_key=None, run_after=MIDNIGHT, clear_number=0
    )
    return {
        "ti": ti,
        "dag": dag,
        "task": dag.get_task(task_id),
        "dag_run": run,
        "params": {},
        "task_state_store": Notes(),
    }
