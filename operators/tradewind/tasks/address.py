"""Which task of which run a Ray job belongs to, as the job's own metadata says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.sdk import Context, conf

from tradewind.deployment.task_instances import TaskAddress
from tradewind.ray_jobs.details import AIRFLOW_DAG, AIRFLOW_RUN, AIRFLOW_TASK, AIRFLOW_WAITS

_FIELDS = {"dag": AIRFLOW_DAG, "run": AIRFLOW_RUN, "task": AIRFLOW_TASK}
DEPLOYMENT = "airflow_deployment"
MAP_INDEX = "airflow_map_index"
TRY = "airflow_try"


@dataclass(frozen=True)
class TaskKey:
    """One try of one task."""

    dag: str
    run: str
    task: str
    map_index: int
    try_number: int

    @staticmethod
    def of(context: Context) -> TaskKey:
        """The task that is running."""
        address = TaskAddress.of(context["ti"])
        return TaskKey(address.dag_id, address.run_id, address.task_id, address.map_index, context["ti"].try_number)

    def claim(self, context: Context) -> dict[str, Any]:
        """How the task's claims name it; ``max_tries`` tells a try after Clear from one after a crash."""
        names = {
            "deployment": deployment(),
            "dag": self.dag,
            "run": self.run,
            "task": self.task,
            "map_index": self.map_index,
        }
        return {**names, "try": self.try_number, "max_tries": context["ti"].max_tries}

    @property
    def names(self) -> tuple[str, ...]:
        """What an id is made of."""
        mapped = (str(self.map_index),) if self.map_index >= 0 else ()
        return (self.dag, self.run, self.task, *mapped)

    @property
    def address(self) -> TaskAddress:
        """The task without its try."""
        return TaskAddress(self.dag, self.run, self.task, self.map_index)

    def metadata(self, *, waits: bool = True) -> dict[str, str]:
        """What the job's metadata says of its task; ``waits`` says whether the task waits for the job."""
        named = {label: getattr(self, name) for name, label in _FIELDS.items()}
        numbers = {MAP_INDEX: str(self.map_index), TRY: str(self.try_number)}
        return {**named, **numbers, DEPLOYMENT: deployment(), AIRFLOW_WAITS: "yes" if waits else "no"}

    @staticmethod
    def from_metadata(metadata: Mapping[str, str]) -> TaskKey | None:
        """The task that ``metadata`` names, if it is one of this Airflow deployment that waits for the job."""
        if metadata.get(DEPLOYMENT) != deployment() or metadata.get(AIRFLOW_WAITS) != "yes":
            return None
        try:
            names = {name: metadata[label] for name, label in _FIELDS.items()}
            return TaskKey(**names, map_index=int(metadata[MAP_INDEX]), try_number=int(metadata[TRY]))
        except (KeyError, ValueError):
            return None


def clears_now(context: Context) -> int:
    """How often tasks of the run have been cleared: it tells a Clear that leaves ``max_tries`` as it was."""
    run: Any = context["dag_run"]
    return int(run.clear_number or 0)


def states_now(context: Context, task_ids: Sequence[str]) -> dict[str, str | None]:
    """Task id -> state, of tasks of the present run; Airflow has none for a task that it has yet to schedule."""
    ti: Any = context["ti"]
    states: Any = ti.get_task_states(dag_id=ti.dag_id, task_ids=list(task_ids), run_ids=[ti.run_id])
    return dict(states.get(ti.run_id, {}))


def deployment() -> str:
    """The name by which this Airflow's jobs and leases are told from those of others on the same cluster or prefix.

    Without ``[tradewind] deployment`` it is the address of the API, if that is configured: good enough to tell some
    Airflows apart, but no name (``turns.start.is_deployment_name``), since others may have the same.
    """
    return str(conf.get("tradewind", "deployment", fallback="") or conf.get("api", "base_url", fallback=""))
