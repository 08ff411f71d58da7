"""Follow a Ray job from the triggerer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tradewind.deployment.log_position import (
    SAVE_INTERVAL_S,
    SAVE_TO_AIRFLOW_S,
    PositionSaver,
    SavedPosition,
    load_position,
    save_last_position,
)
from tradewind.deployment.ray_connection import RayHook
from tradewind.deployment.task_instances import TaskAddress, detach, stop_if_user_acted, stop_plain_job
from tradewind.ray_jobs.follow.outcomes import FollowRequest, JobOutcome, await_outcome
from tradewind.timeouts import within
from tradewind.triggers.in_line import ending_in_line

if TYPE_CHECKING:
    from tradewind.ray_jobs.cluster import RayCluster
    from tradewind.ray_jobs.follow.follow import ReloadConnection
    from tradewind.ray_jobs.follow.log_lines import FlushSchedule, JobLog

logger = logging.getLogger(__name__)
job_logger = logging.getLogger("ray.job")

DEFAULT_LOG_BYTES = 20 * 1024 * 1024
"""Default limit of what is copied from a job's log to the task's log, in bytes."""
MAX_SINGLE_LINES = 20
"""Up to this many lines are logged one by one; more lines share a record, which Airflow transports faster."""
MAX_RECORD_CHARS = 4000
"""Limit of a record with several lines."""
BATCH_S = 3.0
"""Interval at which the lines of all followed jobs are logged, together. Each message of a trigger makes its triggerer
scan Airflow's database once more, which costs more than everything else that following does."""


class RayJobTrigger(BaseTrigger):
    """Fires when a Ray job has ended; until then, copies its log lines to the task's log.

    It stops the job only at its deadline, or when a user marked or cleared the task and ``owns_job`` says that the task
    submitted the job. The event has ``payload``, ``ending`` and ``result``.

    Args:
        ray_conn_id: Connection of the job's cluster.
        watch: The ``FollowRequest`` as JSON: the job, its demand and its deadlines.
        log_bytes: Limit of what the task's log shows of the job's log; 0 for nothing.
        full_log: Where a user can read the whole log.
        owns_job: The task submitted the job.
        payload: Any JSON; the event returns it.
    """

    def __init__(
        self,
        ray_conn_id: str,
        watch: dict[str, Any],
        *,
        log_bytes: int,
        full_log: str,
        owns_job: bool,
        payload: dict[str, Any],
    ) -> None:
        super().__init__()
        self.ray_conn_id = ray_conn_id
        self.watch = watch
        self.log_bytes = log_bytes
        self.full_log = full_log
        self.owns_job = owns_job
        self.payload = payload
        self._job_log: JobLog | None = None
        self._lines_given = asyncio.Event()

    @functools.cached_property
    def _saver(self) -> PositionSaver:
        return PositionSaver(self._address)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments; none of them is a secret."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        names = ("ray_conn_id", "watch", "log_bytes", "full_log", "owns_job", "payload")
        return path, {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Follow the job to its end."""
        from tradewind.ray_jobs.follow.follow import read_connection_first

        watch = FollowRequest.from_json(self.watch)
        reload_cluster = functools.partial(RayHook.reload_cluster, self.ray_conn_id)
        cluster = await read_connection_first(
            watch.job, functools.partial(RayHook.cluster_from_trigger, self.ray_conn_id), job_logger.info
        )
        self._job_log = await self._open_log(watch.job) if self.log_bytes else None
        saving = asyncio.create_task(self._save_positions())
        try:
            async with ending_in_line(self, f"Stopping Ray job {watch.job}.", self._stop_job):
                outcome = await self._await_outcome(cluster, watch, reload_cluster)
        finally:
            saving.cancel()
        log, self._job_log = self._job_log, None  # it has been read to its end
        if log is not None and self.trigger_id is not None:
            await self._saver.end()
        yield TriggerEvent({"ending": outcome.ending.to_json(), "result": outcome.result, **self.payload})

    async def _await_outcome(self, cluster: RayCluster, watch: FollowRequest, reload: ReloadConnection) -> JobOutcome:
        return await await_outcome(cluster, watch, self._job_log, job_logger.info, reload)

    async def cleanup(self) -> None:
        """Save the exact log position. Stops nothing: Airflow also calls this at a redeploy."""
        if position := self._position(is_exact=True):
            await save_last_position(self._address, position)

    async def on_kill(self) -> None:
        """Stop the job, if a user marked or cleared the task."""
        if self.owns_job:
            await asyncio.shield(detach(stop_if_user_acted(self._stop_job, self._address)))

    async def _stop_job(self) -> None:
        await stop_plain_job(await RayHook.cluster_from_trigger(self.ray_conn_id), self._job)

    def _position(self, *, is_exact: bool) -> SavedPosition | None:
        """Return the log position if a triggerer could resume there: ``airflow dags test`` runs a trigger once."""
        if self._job_log is None or self.trigger_id is None:
            return None
        return SavedPosition(self._job, self._job_log.position.to_json(), is_exact, self._saver.follower)

    @property
    def _job(self) -> str:
        return str(self.watch["job"])

    @property
    def _address(self) -> TaskAddress:
        return TaskAddress.of(self.task_instance)

    async def _open_log(self, job: str) -> JobLog:
        from tradewind.ray_jobs.follow.log_lines import JobLog, LogPosition

        saved = await load_position(self._address, job) if self.trigger_id is not None else None
        if saved is not None and not saved.is_exact:
            job_logger.info("The triggerer was killed; lines of its last seconds may come again below.")
        start = LogPosition.from_json(saved.position) if saved else LogPosition()
        return JobLog(self._give, start, max_bytes=self.log_bytes, full_log=self.full_log, schedule=_pace())

    async def _save_positions(self) -> None:
        """Save the log position with the first lines, and then whenever it has changed."""
        await self._lines_given.wait()
        while True:
            position = self._position(is_exact=False)
            if position is not None:
                try:
                    await self._saver.save(position)
                except Exception as error:  # an error of Airflow's API: the next save may succeed
                    text = "Ray job %s: cannot save its log position, so lines may repeat after a restart: %s"
                    logger.warning(text, self._job, error)
            with contextlib.suppress(TimeoutError):  # no new line, but Airflow may lack the position
                async with within(SAVE_TO_AIRFLOW_S):
                    await self._lines_given.wait()
            self._lines_given.clear()
            await asyncio.sleep(SAVE_INTERVAL_S)

    def _give(self, lines: Sequence[str]) -> None:
        emit_lines(lines)
        self._lines_given.set()


@functools.cache
def _pace() -> FlushSchedule:
    """Return the schedule that all triggers of this process share."""
    from tradewind.ray_jobs.follow.log_lines import FlushSchedule

    return FlushSchedule(BATCH_S)


def emit_lines(lines: Sequence[str]) -> None:
    """Log lines of a job: a record each, or many lines in one record when they come fast."""
    if len(lines) <= MAX_SINGLE_LINES:
        for line in lines:
            job_logger.info("%s", line)
        return
    start = size = 0
    for index, line in enumerate(lines):
        if size and size + len(line) > MAX_RECORD_CHARS:
            job_logger.info("%s", "\n".join(lines[start:index]))
            start, size = index, 0
        size += len(line) + 1
    job_logger.info("%s", "\n".join(lines[start:]))
