"""State of one job: the used fields of Ray's ``JobDetails``, and whether the job is managed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tradewind.ray_jobs.errors import RayUnreachableError

TERMINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
NODE_GONE = "NODE_GONE"
"""``error_type`` of a job whose node is gone although Ray reports it as running."""
_MAX_NUMBER: Final = 10**15
"""Of times in ms and of exit codes."""


@dataclass(frozen=True)
class JobDetails:
    """One job at one moment.

    Attributes:
        job: Its submission ID.
        status: Ray's status: ``PENDING``, ``RUNNING``, ``SUCCEEDED``, ``FAILED`` or ``STOPPED``.
        message: Ray's message on the status; for a failed job it ends with the last lines of its log.
        error_type: Ray's ``JobErrorType`` of a failed job, or this package's ``NODE_GONE``.
        exit_code: Exit code of the entrypoint, once it has ended.
        node_id: The node of the entrypoint; None until it has started.
        metadata: Metadata of its submission.
        started_ms: Submission time, as Unix time in ms by the cluster's clock.
        ended_ms: End time, likewise.
    """

    job: str
    status: str
    entrypoint: str = ""
    message: str = ""
    error_type: str | None = None
    exit_code: int | None = None
    node_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    started_ms: int | None = None
    ended_ms: int | None = None

    @property
    def has_ended(self) -> bool:
        """Whether its status is final."""
        return self.status in TERMINAL

    @property
    def running_on(self) -> str | None:
        """Node on which the entrypoint runs now, according to Ray."""
        return self.node_id if self.status == "RUNNING" else None

    def without_node(self) -> JobDetails:
        """Return the job as ended with its node."""
        message = "The job ended because its node has died, although Ray still reports it as running."
        return replace(self, status="FAILED", message=message, error_type=NODE_GONE)

    @staticmethod
    def from_json(fields: Any, cluster: object) -> JobDetails:
        """Return the job in a response of ``cluster``'s Jobs API.

        Raises:
            RayUnreachableError: The response is no job, or a field has another type than Ray's.
        """
        if not isinstance(fields, dict):
            raise _no_job(cluster, "it is no object")
        started, ended = _number(fields, cluster, "start_time"), _number(fields, cluster, "end_time")
        metadata = fields.get("metadata") or {}
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise _no_job(cluster, "its metadata are no texts")
        if not (status := _text(fields, cluster, "status")):
            raise _no_job(cluster, "its status is missing")
        return JobDetails(
            job=_text(fields, cluster, "submission_id") or _text(fields, cluster, "job_id") or "",
            status=status,
            entrypoint=_text(fields, cluster, "entrypoint") or "",
            message=_text(fields, cluster, "message") or "",
            error_type=_text(fields, cluster, "error_type"),
            exit_code=_number(fields, cluster, "driver_exit_code"),
            node_id=_text(fields, cluster, "driver_node_id"),
            metadata=metadata,
            started_ms=started,
            ended_ms=ended,
        )


def submitted_jobs(answer: Any, cluster: object) -> list[JobDetails]:
    """Return the submitted jobs in a list response of ``cluster``; None is an empty list.

    Raises:
        RayUnreachableError: The response is no such list.
    """
    if answer is not None and not isinstance(answer, list):
        raise _no_job(cluster, "they are no list")
    found = (fields for fields in answer or [] if not isinstance(fields, dict) or fields.get("submission_id"))
    return [JobDetails.from_json(fields, cluster) for fields in found]


def _text(fields: Mapping[str, Any], cluster: object, name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise _no_job(cluster, f"its {name} is no text")
    return value


def _number(fields: Mapping[str, Any], cluster: object, name: str) -> int | None:
    value = fields.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MAX_NUMBER):
        raise _no_job(cluster, f"its {name} is no whole number, or too large")
    return value


def _no_job(cluster: object, problem: str) -> RayUnreachableError:
    return RayUnreachableError(f"{cluster} sent invalid jobs, as Ray never does ({problem}): correct its address.")


# Metadata keys, written at submission. They alone decide whether a job is managed; its ID and its submitter do not.

AIRFLOW_DAG: Final = "airflow_dag"
AIRFLOW_RUN: Final = "airflow_run"
AIRFLOW_TASK: Final = "airflow_task"
AIRFLOW_WAITS: Final = "airflow_waits"
STEP: Final = "step"
OUTPUT_PATH: Final = "output_path"
USER: Final = "user"
_USER_KEYS: Final = (USER, "owner")
_NO_OWNER: Final = "-"


def is_managed(metadata: Mapping[str, str]) -> bool:
    """Return whether a task that waits, or a step's lease, retries this job when it is lost.

    The task may belong to any Airflow. A job whose task does not wait is unmanaged, like a user's.
    """
    is_awaited = AIRFLOW_TASK in metadata and metadata.get(AIRFLOW_WAITS) == "yes"
    return is_awaited or (STEP in metadata and OUTPUT_PATH in metadata)


def owner_of(metadata: Mapping[str, str]) -> str:
    """Return the owner of the job, for display."""
    if AIRFLOW_TASK in metadata:
        run, dag = metadata.get(AIRFLOW_RUN, "?"), metadata.get(AIRFLOW_DAG, "?")
        return f"task {metadata[AIRFLOW_TASK]} of run {run} of {dag}"
    if STEP in metadata and OUTPUT_PATH in metadata:
        return f"step {metadata[STEP]}"
    return next((metadata[key] for key in _USER_KEYS if metadata.get(key)), _NO_OWNER)
