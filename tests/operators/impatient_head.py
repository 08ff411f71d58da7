"""A loopback head that speaks Ray's Jobs API and gives up on its jobs before it has started them."""

from __future__ import annotations

import json
from typing import Any

from tradewind.rehearsal.loopback import Answer, Call, LoopbackServer

TOO_LATE = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"


class ImpatientHead(LoopbackServer):
    """Takes every job; ends those before the last at once with an error type of Ray's, and the last one well.

    Attributes:
        jobs: The ids that were submitted, in order.
    """

    def __init__(self, gives_up: int, error_type: str = TOO_LATE) -> None:
        super().__init__()
        self.jobs: list[str] = []
        self._gives_up = gives_up
        self._error_type = error_type

    def answer(self, call: Call) -> Answer:
        if call.path == "/api/version":
            return _json({"ray_version": "2.60.0"})
        if call.method == "POST":
            self.jobs.append(json.loads(call.body)["submission_id"])
            return _json({"submission_id": self.jobs[-1]})
        job = call.path.removeprefix("/api/jobs/")
        if not job:
            return _json([self._details(name) for name in self.jobs[-1:]])
        if job.endswith("/logs"):
            return _json({"logs": "the driver's last line\n"})
        return _json(self._details(job)) if job in self.jobs else Answer("unknown", 404)

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        return Answer(kind, status, message.encode())

    def _details(self, job: str) -> dict[str, Any]:
        if self.jobs.index(job) >= self._gives_up:
            return {"submission_id": job, "status": "SUCCEEDED"}
        return {"submission_id": job, "status": "FAILED", "message": "gave up", "error_type": self._error_type}


def _json(fields: Any) -> Answer:
    return Answer("asked", body=json.dumps(fields).encode(), headers={"Content-Type": "application/json"})
