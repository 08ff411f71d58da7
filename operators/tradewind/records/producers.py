"""The task that claimed an attempt, as its record says it. Anyone who can write the store may have written that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_MAX_ID_CHARS: Final = 250
"""Airflow's bound for the id of a DAG, a run or a task."""


@dataclass(frozen=True)
class TaskOfRun:
    """A task instance in Airflow.

    Attributes:
        dag, run, task: Ids; empty for one that the record does not say.
        map_index: -1 for a task that is not mapped.
    """

    dag: str = ""
    run: str = ""
    task: str = ""
    map_index: int = -1


def task_of(by: Mapping[str, Any]) -> TaskOfRun | None:
    """Return the task in the field ``by`` of a lease or an attempt; None if a script or another tool claimed it."""
    dag, run, task = (_id(by.get(name)) for name in ("dag", "run", "task"))
    if not dag and not run:
        return None
    index = by.get("map_index")
    return TaskOfRun(dag, run, task, index if isinstance(index, int) and 0 <= index < 1 << 31 else -1)


def _id(value: Any) -> str:
    """Return an id of Airflow; nothing for a text that is none."""
    return value if isinstance(value, str) and len(value) <= _MAX_ID_CHARS and value.isprintable() else ""
