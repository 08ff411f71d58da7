"""The task and run that a Ray job belongs to, as stored in the job's metadata."""

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
        """Return the key of the running task."""
        address = TaskAddress.of(context["ti"])
        return TaskKey(address.dag_id, address.run_id, address.task_id, address.map_index, context["ti"].try_number)

    def claim(self, context: Context) -> dict[str, Any]:
        """The task in its claims; ``max_tries`` distinguishes a try after Clear from one after a crash."""
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
        """The parts of an ID."""
        mapped = (str(self.map_index),) if self.map_index >= 0 else ()
        return (self.dag, self.run, self.task, *mapped)

    @property
    def address(self) -> TaskAddress:
        """The task without its try."""
        return TaskAddress(self.dag, self.run, self.task, self.map_index)

    def metadata(self, *, waits: bool = True) -> dict[str, str]:
        """The task in a job's metadata; ``waits`` is whether the task waits for the job."""
        named = {label: getattr(self, name) for name, label in _FIELDS.items()}
        numbers = {MAP_INDEX: str(self.map_index), TRY: str(self.try_number)}
        return {**named, **numbers, DEPLOYMENT: deployment(), AIRFLOW_WAITS: "yes" if waits else "no"}

    @staticmethod
    def from_metadata(metadata: Mapping[str, str]) -> TaskKey | None:
        """Return the task in ``metadata``, if it belongs to this deployment and waits for the job."""
        if metadata.get(DEPLOYMENT) != deployment() or metadata.get(AIRFLOW_WAITS) != "yes":
            return None
        try:
            names = {name: metadata[label] for name, label in _FIELDS.items()}
            return TaskKey(**names, map_index=int(metadata[MAP_INDEX]), try_number=int(metadata[TRY]))
        except (KeyError, ValueError):
            return None


def clears_now(context: Context) -> int:
    """Return how often tasks of the run were cleared: it reveals a Clear that leaves ``max_tries`` unchanged."""
    run: Any = context["dag_run"]
    return int(run.clear_number or 0)


def states_now(context: Context, task_ids: Sequence[str]) -> dict[str, str | None]:
    """Return task id -> state for tasks of this run; Airflow has none for tasks not yet scheduled."""
    ti: Any = context["ti"]
    states: Any = ti.get_task_states(dag_id=ti.dag_id, task_ids=list(task_ids), run_ids=[ti.run_id])
    return dict(states.get(ti.run_id, {}))


def deployment() -> str:
    """Return the name that distinguishes this Airflow's jobs and leases on a shared cluster or prefix.

    Without ``[tradewind] deployment`` this is the address of the API, if configured. The address distinguishes some
    Airflows but is not a name (``attempts.decisions.is_deployment_name``), since others may have the same one.
    """
    return str(conf.get("tradewind", "deployment", fallback="") or conf.get("api", "base_url", fallback=""))
