"""How a task instance is named, without its try: of one run, one task, and one index where it is mapped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TaskAddress:
    """One task instance."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int

    @staticmethod
    def of(task_instance: Any) -> TaskAddress:
        """That of an instance as Airflow has it, which knows no index where the task is not mapped."""
        ti = task_instance
        return TaskAddress(ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index)

    @property
    def name(self) -> str:
        """How Airflow names the task in its answer about the states of a run."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}_{self.map_index}"
