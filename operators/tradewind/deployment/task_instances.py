"""Task instances without their try, and stopping their jobs when a user ends them.

When Airflow ends a trigger or a task, its job is stopped only if a user acted. ``on_kill`` alone proves nothing: it
also occurs when a trigger moves to another triggerer, and with a redeploy. So the task's state is queried first.
``on_kill`` has about a second in the triggerer, so a detached task of the event loop stops the job. Stops that end with
the triggerer are left to the reconciler.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

if TYPE_CHECKING:
    from tradewind.ray_jobs.cluster import RayCluster

logger = logging.getLogger(__name__)

WAITING_STATES = frozenset({"running", "deferred", "queued", "scheduled", "up_for_retry", "up_for_reschedule"})
"""States in which a task still waits for its job, or will return to it."""

_detached: set[asyncio.Task[None]] = set()


@dataclass(frozen=True)
class TaskAddress:
    """One task instance."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int

    @staticmethod
    def of(task_instance: Any) -> TaskAddress:
        """Return the address of Airflow's instance; one that is not mapped has no index."""
        ti = task_instance
        return TaskAddress(ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index)

    @property
    def name(self) -> str:
        """Airflow's name of the task in its response about the states of a run."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}_{self.map_index}"


def was_changed_by_user(task: TaskAddress) -> bool:
    """Return whether a user marked the task, or cleared it while it ran: it no longer waits for its job."""
    states = RuntimeTaskInstance.get_task_states(
        dag_id=task.dag_id, task_ids=[task.task_id], run_ids=[task.run_id], map_index=task.map_index
    )
    return states.get(task.run_id, {}).get(task.name) not in WAITING_STATES


async def stop_if_user_acted(stop: Callable[[], Coroutine[Any, Any, None]], task: TaskAddress) -> None:
    """``stop()`` the work of ``task``, if a user marked or cleared the task."""
    if await asyncio.to_thread(was_changed_by_user, task):
        logger.info("Task %s was marked or cleared by a user: stopping its Ray job.", task.name)
        await stop()


async def stop_plain_job(cluster: RayCluster, job: str) -> None:
    """Stop a job that has no lease, and wait until it has ended."""
    from tradewind.ray_jobs.api import JobsApi
    from tradewind.ray_jobs.follow.stopping import stop_job

    async with JobsApi(cluster) as api:
        await stop_job(api, job, logger.info)


def stop_from_on_kill(stop: Callable[[], Coroutine[Any, Any, None]], task: TaskAddress) -> None:
    """Do the same from the ``on_kill`` of a worker, which may interrupt the follower's event loop."""
    thread = threading.Thread(target=asyncio.run, args=(stop_if_user_acted(stop, task),), daemon=True)
    thread.start()
    thread.join()


def detach(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run ``work`` in this event loop, independent of the caller."""
    task = asyncio.create_task(work)
    _detached.add(task)
    task.add_done_callback(_done)
    return task


def _done(task: asyncio.Task[None]) -> None:
    _detached.discard(task)
    if not task.cancelled() and (error := task.exception()):
        logger.warning("A Ray job could not be stopped: %s", error)
