"""Restore saved jobs to a restarted head: each once, as submitted, despite interruptions.

The restart fixes the ID of a restored job, so Ray itself refuses a duplicate. A job is restored only once its former
instance has ended there or is unknown, so two instances never run at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.errors import RayJobRefusedError, RayUnreachableError
from tradewind.ray_jobs.follow.outcomes import EndingKind, classify
from tradewind.ray_jobs.follow.stopping import stop_job
from tradewind.ray_jobs.job_backup import LABEL_SELECTOR, BadBackupError, JobBackup, SavedJob, restored_id
from tradewind.ray_jobs.nodes import fetch_living
from tradewind.timeouts import within

_PENDING_TIMEOUT_S: Final = 20.0
"""How long a job may wait on the new head before the restorer ends its wait."""
_RUNNING_TIMEOUT_S: Final = 90.0
"""How long a job may appear to run: the head corrects stored states when it misses the node, at 20 s."""
_ENDING_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 1.0


class RestoreAction(Enum):
    """Action for one saved job, from the state of its former instance on the new head."""

    SUBMIT = "it is submitted again"
    END = "its wait on the new head is ended first"
    WAIT = "its state is fetched again"
    LEAVE_ALONE = "it needs no restore"
    LOST = "it cannot be restored"


def decide_restore(
    job: SavedJob, found: JobDetails | None, *, waited_s: float, is_ended_here: bool, is_node_gone: bool = False
) -> tuple[RestoreAction, str]:
    """Return the action for ``job``, and the reason.

    Args:
        found: Its former instance on the new head; None if the head does not know it.
        waited_s: How long the restorer has observed it.
        is_ended_here: The restorer ended its wait on the new head.
        is_node_gone: Its node is gone, whatever the head reports of the job.
    """
    if job.missing:
        return RestoreAction.LOST, f"the head had lost {', '.join(job.missing)} before the backup"
    if not job.has_readable_labels:
        return RestoreAction.LOST, f"its metadata hold no valid labels in {LABEL_SELECTOR}"
    if found is None or found.status == "FAILED":
        return RestoreAction.SUBMIT, ""
    if found.status == "SUCCEEDED":
        return RestoreAction.LEAVE_ALONE, "it succeeded before the restart"
    if found.status == "STOPPED":
        return (RestoreAction.SUBMIT, "") if is_ended_here else (RestoreAction.LEAVE_ALONE, "a user stopped it")
    if waited_s < (_PENDING_TIMEOUT_S if found.status == "PENDING" else _RUNNING_TIMEOUT_S):
        return RestoreAction.WAIT, ""
    if found.status == "PENDING":
        return RestoreAction.END, ""
    return (RestoreAction.SUBMIT, "") if is_node_gone else (RestoreAction.LEAVE_ALONE, "it continues under its old id")


@dataclass(frozen=True)
class RestoreResult:
    """Result of restoring one job.

    Attributes:
        job: Its former ID.
        new: Its new ID; None if it was not restored.
        why: Why it was not restored, or how it has ended since.
        is_lost: It should have been restored, or has since ended through no fault of its own.
        is_retryable: It is lost, and another restore may succeed.
    """

    job: str
    new: str | None = None
    why: str = ""
    is_lost: bool = False
    is_retryable: bool = False

    @property
    def sentence(self) -> str:
        """Return a sentence about it for users."""
        if self.new is not None:
            return f"Job {self.job} is restored as {self.new}{f', and has ended: {self.why}' if self.why else ''}."
        return f"Job {self.job} {'is not restored' if self.is_lost else 'needs no restore'}: {self.why}."


def resolve_restored_job(job: str, found: JobDetails) -> RestoreResult:
    """Return the result for ``job``, which an earlier restore submitted as ``found``; its ID stays."""
    if found.status != "FAILED":
        return RestoreResult(job, found.job)
    ending = classify(found.job, found)
    return RestoreResult(job, found.job, ending.sentence.rstrip("."), is_lost=ending.kind is not EndingKind.USER_ERROR)


class JobRestorer:
    """Restores the jobs of one backup.

    Args:
        jobs: The restarted head.
        check: Raises once nothing more may be done.
        clock: Monotonic clock, in seconds.
        sleep: Waits for some seconds.
    """

    def __init__(
        self,
        jobs: RayJobs,
        backup: JobBackup,
        *,
        check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._jobs = jobs
        self._backup = backup
        self._check = check
        self._clock = clock
        self._sleep = sleep

    def run(self) -> Iterator[RestoreResult]:
        """Yield the result of each job once it is known. The next run repeats interrupted work.

        Raises:
            RayUnreachableError: The head does not answer, or is not ready for jobs yet.
            RayAuthenticationError: The head refuses the token.
            BadBackupError: The backup cannot be read.
        """
        waiting, began = self._backup.jobs(), self._clock()
        while waiting:
            known = {details.job: details for details in self._jobs.jobs()}
            again: list[SavedJob] = []
            for job in waiting:
                self._check()
                if (done := self._next(job, known, self._clock() - began)) is None:
                    again.append(job)
                else:
                    yield done
            waiting = again
            if waiting:
                self._sleep(_POLL_S)

    def _next(self, job: SavedJob, known: dict[str, JobDetails], waited_s: float) -> RestoreResult | None:
        if (new := restored_id(job.job, self._backup.restart)) in known:
            return resolve_restored_job(job.job, known[new])
        is_ended_here = self._backup.has_noted_ending(job.job)
        found = known.get(job.job)
        is_gone = found is not None and found.running_on is not None and self._has_lost(found.running_on, job)
        what, why = decide_restore(job, found, waited_s=waited_s, is_ended_here=is_ended_here, is_node_gone=is_gone)
        match what:
            case RestoreAction.SUBMIT:
                return self._submit(job, new)
            case RestoreAction.END:
                self._backup.note_ending(job.job)  # recorded first: otherwise a user would seem to have ended it
                asyncio.run(self._end(job.job))
                return None
            case RestoreAction.WAIT:
                self._jobs.log_text(job.job)  # a head checks its remembered jobs once a client requests a log
                return None
        return RestoreResult(job.job, why=why, is_lost=what is RestoreAction.LOST)

    def _has_lost(self, node: str, job: SavedJob) -> bool:
        """Return whether ``node`` belonged to a former head, is unknown, or is dead."""

        async def living() -> Collection[str]:
            async with JobsApi(self._jobs.cluster) as api:
                return await fetch_living(api, [node])

        return (job.on_head and node == job.node_id) or node not in asyncio.run(living())

    def _submit(self, job: SavedJob, new: str) -> RestoreResult:
        try:
            for uri in job.packages:
                if not self._jobs.has_package(uri):
                    self._jobs.put_package(uri, self._backup.package(uri))
            self._jobs.resubmit(job.submission(self._backup.restart))
        except (RayJobRefusedError, BadBackupError, OSError) as error:
            return RestoreResult(job.job, why=str(error).rstrip("."), is_lost=True, is_retryable=True)
        return RestoreResult(job.job, new)

    async def _end(self, job: str) -> None:
        """End the wait of a job on the new head; a job that starts meanwhile continues."""
        try:
            async with within(_ENDING_TIMEOUT_S), JobsApi(self._jobs.cluster) as api:
                await stop_job(api, job, lambda notice: None)
        except TimeoutError:
            raise RayUnreachableError(f"Job {job} waits on the new head and could not be stopped: try again.") from None
