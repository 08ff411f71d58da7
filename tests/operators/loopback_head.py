"""A loopback head that speaks Ray's Jobs API, for cases that take a real head days."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import pytest

from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest, LoopbackServer
from tradewind.serialization.shipping import result_line, result_marker

TOO_LATE = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"


class LoopbackHead(LoopbackServer):
    """A head with jobs.

    Attributes:
        jobs: The response for each job, in order of submission.
        last_line: The log of each job.
        python: Its version of Python.
    """

    last_line = "the driver's last line"
    python: Any = "3.11.7"

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, dict[str, Any]] = {}

    @contextmanager
    def connected(self, monkeypatch: pytest.MonkeyPatch, conn_id: str = "head") -> Iterator[Self]:
        """Run the head for the length of a block, with a connection to it in Airflow."""
        self.start()
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": "ray", "host": self.url}))
        try:
            yield self
        finally:
            self.stop()

    def has(self, job: str, status: str, **fields: Any) -> None:
        """Add ``job`` in this state."""
        self.jobs[job] = {"submission_id": job, "status": status, **fields}

    def submitted(self, job: str, fields: Mapping[str, Any]) -> None:
        """Add the submitted ``job`` as running."""
        self.has(job, "RUNNING", metadata=fields.get("metadata"))

    def answer(self, call: HttpRequest) -> Answer:
        job, _, action = call.path.removeprefix("/api/jobs/").partition("/")
        if call.path == "/api/version":
            return _json({"ray_version": "2.60.0"})
        if call.path == "/api/v0/cluster_metadata":
            return _json({"data": {"pythonVersion": self.python}})
        if call.path.startswith("/api/packages/"):  # it has them all
            return _json({}, "package")
        if action == "stop":
            self.jobs[job]["status"] = "STOPPED"
            return _json({"stopped": True})
        if call.method == "POST":
            fields = json.loads(call.body)
            self.submitted(fields["submission_id"], fields)
            return _json({"submission_id": fields["submission_id"], "job_id": fields["submission_id"]})
        if not job:
            return _json(list(self.jobs.values()))
        if action == "logs":
            return _json({"logs": self.last_line + "\n"})
        return _json(self.jobs[job]) if job in self.jobs else Answer("unknown", 404)

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        return Answer(kind, status, message.encode())


class ImpatientHead(LoopbackHead):
    """End the first jobs at once with one of Ray's error types; later jobs succeed.

    Args:
        failing: Number of jobs that fail.
        error_type: Ray's error type of these jobs.
        exit_code: Exit code of their entrypoint, if it ran.
        driver: Called with job id and output path before each job ends.
        last_line: The log of each job.
    """

    def __init__(
        self,
        failing: int,
        error_type: str = TOO_LATE,
        exit_code: int | None = None,
        driver: Callable[[str, str], None] = lambda job, output_path: None,
        last_line: str = "the driver's last line",
    ) -> None:
        super().__init__()
        self.last_line = last_line
        self._failing = failing
        self._failure = {"message": "Ray's last word", "error_type": error_type, "driver_exit_code": exit_code}
        self._driver = driver

    def submitted(self, job: str, fields: Mapping[str, Any]) -> None:
        self._driver(job, fields.get("metadata", {}).get("output_path", ""))
        if len(self.jobs) >= self._failing:
            self.has(job, "SUCCEEDED")
        else:
            self.has(job, "FAILED", **self._failure)


class CallingHead(LoopbackHead):
    """End each job at once, as if its function had returned ``result``."""

    result: Any = None

    def submitted(self, job: str, fields: Mapping[str, Any]) -> None:
        self.has(job, "SUCCEEDED", runtime_env=fields["runtime_env"])
        self.last_line = result_line(self.result, result_marker(job))

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Return the calls of the submitted jobs."""
        return [json.loads(job["runtime_env"]["env_vars"]["TRADEWIND_CALL"]) for job in self.jobs.values()]


def _json(fields: Any, kind: str = "answered") -> Answer:
    return Answer(kind, body=json.dumps(fields).encode(), headers={"Content-Type": "application/json"})
