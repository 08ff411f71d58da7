"""Following a Ray job from the triggerer."""

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
from tradewind.ray_jobs.follow.outcomes import FollowRequest, await_outcome
from tradewind.timeouts import within

if TYPE_CHECKING:
    from tradewind.ray_jobs.follow.log_lines import FlushSchedule, JobLog

logger = logging.getLogger(__name__)
job_logger = logging.getLogger("ray.job")

DEFAULT_LOG_BYTES = 20 * 1024 * 1024
"""How much of a job's log is copied to the task's log unless the task says otherwise."""
MAX_SINGLE_LINES = 20
"""Up to so many lines at once are logged one by one; more of them go into one record, which Airflow carries faster."""
MAX_RECORD_CHARS = 4000
"""Characters in such a record."""
BATCH_S = 3.0
"""How often the lines of all followed jobs are logged, together. Whatever a trigger sends, be it one line, makes its
triggerer go through Airflow's database once more, which costs more than all else that following does."""


class RayJobTrigger(BaseTrigger):
    """Fires when a Ray job has ended; until then its log lines go to the task's log.

    It stops the job only when its time is over, or when a person marked or cleared the task and ``owns_job`` says that
    the job is this task's own. ``payload`` is handed back in the event, beside ``ending`` and ``result``.

    Args:
        ray_conn_id: Connection of the job's cluster.
        watch: The job and what is watched for.
        log_bytes: How much of the job's log is shown in the task's log; 0 for nothing.
        full_log: Where the whole log can be read.
        owns_job: The task made the job for itself.
        payload: Any JSON.
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
    def _keeper(self) -> PositionSaver:
        return PositionSaver(self._address)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path and the arguments; no secret is among them."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        names = ("ray_conn_id", "watch", "log_bytes", "full_log", "owns_job", "payload")
        return path, {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Follow the job to its end."""
        from tradewind.ray_jobs.follow.follow import first_reading

        watch = FollowRequest.from_json(self.watch)
        read_again = functools.partial(RayHook.reload_cluster, self.ray_conn_id)
        cluster = await first_reading(
            watch.job, functools.partial(RayHook.cluster_from_trigger, self.ray_conn_id), job_logger.info
        )
        self._job_log = await self._open_log(watch.job) if self.log_bytes else None
        saving = asyncio.create_task(self._save_positions())
        try:
            outcome = await await_outcome(cluster, watch, self._job_log, job_logger.info, read_again)
        finally:
            saving.cancel()
        log, self._job_log = self._job_log, None  # it has been read to its end
        if log is not None and self.trigger_id is not None:
            await self._keeper.end()
        yield TriggerEvent({"ending": outcome.ending.to_json(), "result": outcome.result, **self.payload})

    async def cleanup(self) -> None:
        """Leave the exact position in the log behind. Stops nothing: this also comes with a redeploy."""
        if position := self._position(is_exact=True):
            await save_last_position(self._address, position)

    async def on_kill(self) -> None:
        """Stop the job, if a person marked or cleared the task."""
        if self.owns_job:
            await asyncio.shield(detach(stop_if_user_acted(self._stop_job, self._address)))

    async def _stop_job(self) -> None:
        await stop_plain_job(await RayHook.cluster_from_trigger(self.ray_conn_id), self._job)

    def _position(self, *, is_exact: bool) -> SavedPosition | None:
        """Where it is in the log, if somebody could go on there: ``airflow dags test`` runs a trigger only once."""
        if self._job_log is None or self.trigger_id is None:
            return None
        return SavedPosition(self._job, self._job_log.position.to_json(), is_exact, self._keeper.follower)

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
        return JobLog(self._give, start, max_bytes=self.log_bytes, full_log=self.full_log, pace=_pace())

    async def _save_positions(self) -> None:
        """Write the position down with the first lines, so that whoever comes next knows, and as long as it changes."""
        await self._lines_given.wait()
        while True:
            position = self._position(is_exact=False)
            if position is not None:
                try:
                    await self._keeper.keep(position)
                except Exception as error:  # of Airflow's API: the log goes on, and the next turn may do better
                    logger.warning("The position in the job's log could not be kept: %s", error)
            with contextlib.suppress(TimeoutError):  # nothing is printed, but Airflow may have to be told still
                async with within(SAVE_TO_AIRFLOW_S):
                    await self._lines_given.wait()
            self._lines_given.clear()
            await asyncio.sleep(SAVE_INTERVAL_S)

    def _give(self, lines: Sequence[str]) -> None:
        emit_lines(lines)
        self._lines_given.set()


@functools.cache
def _pace() -> FlushSchedule:
    """One for all triggers of this process."""
    from tradewind.ray_jobs.follow.log_lines import FlushSchedule

    return FlushSchedule(BATCH_S)


def emit_lines(lines: Sequence[str]) -> None:
    """Log lines of a job: each as a record of its own, or many in one record when they come fast."""
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
