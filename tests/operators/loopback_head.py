"""A loopback head that speaks Ray's Jobs API, for what a real one would take days for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tradewind.rehearsal.loopback import Answer, Call, LoopbackServer

TOO_LATE = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"


class LoopbackHead(LoopbackServer):
    """A head with jobs.

    Attributes:
        jobs: What it says of each, in the order in which they came.
    """

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, dict[str, Any]] = {}

    def has(self, job: str, status: str, **fields: Any) -> None:
        """It knows ``job`` in this state."""
        self.jobs[job] = {"submission_id": job, "status": status, **fields}

    def submitted(self, job: str, fields: Mapping[str, Any]) -> None:
        """Somebody has submitted ``job``."""
        self.has(job, "RUNNING", metadata=fields.get("metadata"))

    def answer(self, call: Call) -> Answer:
        job, _, action = call.path.removeprefix("/api/jobs/").partition("/")
        if call.path == "/api/version":
            return _json({"ray_version": "2.60.0"})
        if action == "stop":
            self.jobs[job]["status"] = "STOPPED"
            return _json({"stopped": True})
        if call.method == "POST":
            fields = json.loads(call.body)
            self.submitted(fields["submission_id"], fields)
            return _json({"submission_id": fields["submission_id"]})
        if not job:
            return _json(list(self.jobs.values()))
        if action == "logs":
            return _json({"logs": "the driver's last line\n"})
        return _json(self.jobs[job]) if job in self.jobs else Answer("unknown", 404)

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        return Answer(kind, status, message.encode())


class ImpatientHead(LoopbackHead):
    """Ends the first jobs at once with an error type of Ray's, and those that come after them well."""

    def __init__(self, gives_up: int, error_type: str = TOO_LATE) -> None:
        super().__init__()
        self._gives_up = gives_up
        self._error_type = error_type

    def submitted(self, job: str, fields: Mapping[str, Any]) -> None:
        if len(self.jobs) >= self._gives_up:
            self.has(job, "SUCCEEDED")
        else:
            self.has(job, "FAILED", message="gave up", error_type=self._error_type)


def _json(fields: Any) -> Answer:
    return Answer("asked", body=json.dumps(fields).encode(), headers={"Content-Type": "application/json"})
