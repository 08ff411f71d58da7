"""What a cluster says of one job: the fields of Ray's ``JobDetails`` that we use, as a plain value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tradewind.ray_jobs.errors import RayUnreachableError

TERMINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
NODE_GONE = "NODE_GONE"
"""The ``error_type`` of a job that Ray still calls running although its node is gone."""
_LARGEST: Final = 10**15
"""Of times in ms and of exit codes."""


@dataclass(frozen=True)
class JobDetails:
    """One job at one moment.

    Attributes:
        job: Its submission id.
        status: Ray's status: ``PENDING``, ``RUNNING``, ``SUCCEEDED``, ``FAILED`` or ``STOPPED``.
        message: Ray's words on the status; for a failed job they end with the last lines of its log.
        error_type: Ray's ``JobErrorType`` of a failed job; or ``NODE_GONE``, where we judged it.
        exit_code: Of the entrypoint, once it has ended.
        node_id: The node that the entrypoint runs on; None until it has been started.
        metadata: What was given when it was submitted.
        started_ms: When it was submitted, as Unix time in ms by the cluster's clock.
        ended_ms: When it ended, likewise.
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
        """The node of an entrypoint that runs now, by what Ray says."""
        return self.node_id if self.status == "RUNNING" else None

    def without_node(self) -> JobDetails:
        """The job as it ended with its node."""
        message = "The job ended because its node has died, though Ray still calls it running."
        return replace(self, status="FAILED", message=message, error_type=NODE_GONE)

    @staticmethod
    def from_json(fields: Any, whose: object) -> JobDetails:
        """The job in an answer of the Jobs API of the cluster ``whose``.

        Raises:
            RayUnreachableError: It is none, or a field has another type than Ray gives it.
        """
        if not isinstance(fields, dict):
            raise _no_job(whose, "it is no object")
        started, ended = _number(fields, whose, "start_time"), _number(fields, whose, "end_time")
        metadata = fields.get("metadata") or {}
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise _no_job(whose, "its metadata are no texts")
        if not (status := _text(fields, whose, "status")):
            raise _no_job(whose, "its status is missing")
        return JobDetails(
            job=_text(fields, whose, "submission_id") or _text(fields, whose, "job_id") or "",
            status=status,
            entrypoint=_text(fields, whose, "entrypoint") or "",
            message=_text(fields, whose, "message") or "",
            error_type=_text(fields, whose, "error_type"),
            exit_code=_number(fields, whose, "driver_exit_code"),
            node_id=_text(fields, whose, "driver_node_id"),
            metadata=metadata,
            started_ms=started,
            ended_ms=ended,
        )


def submitted_jobs(answer: Any, whose: object) -> list[JobDetails]:
    """The jobs in a list of the Jobs API of the cluster ``whose`` that were submitted; None is an empty one.

    Raises:
        RayUnreachableError: It is no such list.
    """
    if answer is not None and not isinstance(answer, list):
        raise _no_job(whose, "they are no list")
    found = (fields for fields in answer or [] if not isinstance(fields, dict) or fields.get("submission_id"))
    return [JobDetails.from_json(fields, whose) for fields in found]


def _text(fields: Mapping[str, Any], whose: object, name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise _no_job(whose, f"its {name} is no text")
    return value


def _number(fields: Mapping[str, Any], whose: object, name: str) -> int | None:
    value = fields.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or abs(value) > _LARGEST):
        raise _no_job(whose, f"its {name} is no whole number, or too large")
    return value


def _no_job(whose: object, flaw: str) -> RayUnreachableError:
    return RayUnreachableError(f"{whose} answered about jobs what Ray never answers ({flaw}): correct its address.")


# Whose a job is, by its metadata: a task's, which goes on with it by itself, or a person's.
#
# What a job is called, and who could have submitted it, is not asked: only what was written down as it was submitted.

AIRFLOW_DAG: Final = "airflow_dag"
AIRFLOW_RUN: Final = "airflow_run"
AIRFLOW_TASK: Final = "airflow_task"
AIRFLOW_WAITS: Final = "airflow_waits"
STEP: Final = "step"
OUTPUT_PATH: Final = "output_path"
USER: Final = "user"
_USER_KEYS: Final = (USER, "owner")
_NOBODY: Final = "-"


def is_managed(metadata: Mapping[str, str]) -> bool:
    """Whether somebody makes the next attempt when this job is lost: a task that waits for it, or a step's lease.

    Any Airflow's, not only this one's. A job whose task does not wait has nobody, like a person's.
    """
    is_awaited = AIRFLOW_TASK in metadata and metadata.get(AIRFLOW_WAITS) == "yes"
    return is_awaited or (STEP in metadata and OUTPUT_PATH in metadata)


def owner_of(metadata: Mapping[str, str]) -> str:
    """Whose job it is, for people."""
    if AIRFLOW_TASK in metadata:
        run, dag = metadata.get(AIRFLOW_RUN, "?"), metadata.get(AIRFLOW_DAG, "?")
        return f"task {metadata[AIRFLOW_TASK]} of run {run} of {dag}"
    if STEP in metadata and OUTPUT_PATH in metadata:
        return f"step {metadata[STEP]}"
    return next((metadata[key] for key in _USER_KEYS if metadata.get(key)), _NOBODY)
