"""What a cluster says of one job: the fields of Ray's ``JobDetails`` that we use, as a plain value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

TERMINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
NODE_GONE = "NODE_GONE"
"""The ``error_type`` of a job that Ray still calls running although its node is gone."""


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
    def from_json(fields: Mapping[str, Any]) -> JobDetails:
        """The job in an answer of the Jobs API."""
        return JobDetails(
            job=fields.get("submission_id") or fields.get("job_id") or "",
            status=str(fields["status"]),
            entrypoint=fields.get("entrypoint") or "",
            message=fields.get("message") or "",
            error_type=fields.get("error_type"),
            exit_code=fields.get("driver_exit_code"),
            node_id=fields.get("driver_node_id"),
            metadata=fields.get("metadata") or {},
            started_ms=fields.get("start_time"),
            ended_ms=fields.get("end_time"),
        )
