"""Steps on a cluster that run without progress, found from the running jobs of its head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tradewind.fleet.errors import FleetError
from tradewind.ray_jobs.details import AIRFLOW_DAG, AIRFLOW_RUN, AIRFLOW_TASK, OUTPUT_PATH, STEP, JobDetails
from tradewind.records.record import read_records
from tradewind.runtime.stalls import DEFAULT_LIMITS, Stall, StallLimits, read_stall
from tradewind.storage import Roots, StorageError
from tradewind.text import format_duration, single_line

MAX_STEPS: Final = 200
"""Running steps of a cluster that are checked."""


@dataclass(frozen=True)
class StalledStep:
    """One step without progress.

    Attributes:
        job: Submission ID of its Ray job, which differs for each attempt.
        what: What is missing: ``step`` or ``shard``.
        since: Time of the last progress, in seconds since the epoch.
        seconds: Time without progress.
        limit_s: The limit that it exceeds.
        dag_id: With ``run_id`` and ``task_id`` its Airflow task; empty for a step that no task started.
    """

    cluster: str
    step: str
    job: str
    output_path: str
    what: str
    since: float
    seconds: float
    limit_s: float
    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""

    def __str__(self) -> str:
        task = f", task {self.task_id} of run {self.run_id} of {self.dag_id}" if self.task_id else ""
        without = f"no {self.what} for {format_duration(self.seconds)} (limit {format_duration(self.limit_s)})"
        return f"Step {self.step} on {self.cluster}{task}: {without}. Output: {self.output_path}"


def running_steps(jobs: Iterable[JobDetails]) -> list[JobDetails]:
    """Return the jobs of steps that run, at most ``MAX_STEPS``, the newest first."""
    steps = [
        job for job in jobs if job.status == "RUNNING" and job.metadata.get(STEP) and job.metadata.get(OUTPUT_PATH)
    ]
    return sorted(steps, key=lambda job: -(job.started_ms or 0))[:MAX_STEPS]


def stalled_steps(
    cluster: str,
    jobs: Iterable[JobDetails],
    roots: Roots,
    *,
    now: float | None = None,
    limits: StallLimits = DEFAULT_LIMITS,
) -> list[StalledStep]:
    """Return the stalled steps among the ``jobs`` of ``cluster``, the longest without progress first.

    Any client of the cluster writes the metadata of jobs, so paths outside of ``roots`` are not read. An output whose
    records cannot be read is not called stalled.

    Raises:
        FleetError: The store does not answer.
    """
    steps = [job for job in running_steps(jobs) if roots.allow(job.metadata[OUTPUT_PATH])]
    found: list[StalledStep] = []
    failures: list[StorageError] = []
    try:
        records = read_records(sorted({job.metadata[OUTPUT_PATH] for job in steps}))
    except StorageError as error:
        raise FleetError(f"The records of running steps cannot be read: {error}") from error
    for job in steps:
        record = records[job.metadata[OUTPUT_PATH]]
        if record.lease is None or record.lease.job != job.job:
            continue  # another attempt works on the output
        try:
            stall = read_stall(job.metadata[OUTPUT_PATH], record, now=now, limits=limits)
        except StorageError as error:
            failures.append(error)
            continue
        if stall is not None:
            found.append(_stalled_step(cluster, job, stall))
    if failures and len(failures) == len(steps):
        raise FleetError(f"The progress of running steps cannot be read: {failures[0]}")
    return sorted(found, key=lambda step: -step.seconds)


def _stalled_step(cluster: str, job: JobDetails, stall: Stall) -> StalledStep:
    def text(key: str) -> str:
        return single_line(job.metadata.get(key, ""))

    task = (text(AIRFLOW_DAG), text(AIRFLOW_RUN), text(AIRFLOW_TASK))
    times = (stall.since, stall.seconds, stall.limit_s)
    return StalledStep(cluster, text(STEP), job.job, text(OUTPUT_PATH), stall.what, *times, *task)


def new_stalls(stalled: Sequence[StalledStep], known: Iterable[str]) -> list[StalledStep]:
    """Return the stalled steps of jobs that are not ``known``, so that each stall is reported once."""
    reported = set(known)
    return [step for step in stalled if step.job not in reported]
