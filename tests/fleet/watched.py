"""A head that answers what an overview asks, for tests of the overview and of the page."""

from __future__ import annotations

from typing import Any

from tests.operators.loopback_head import LoopbackHead
from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest, json_answer


class WatchedHead(LoopbackHead):
    """A head with nodes and waiting work.

    Attributes:
        slices: Slice → number of its hosts in Ray.
        waiting: Rows of Ray's table of tasks that wait for a node.
        drivers: Ray's own ID of a running job → its submission ID.
    """

    def __init__(self) -> None:
        super().__init__()
        self.slices: dict[str, int] = {}
        self.waiting: list[dict[str, Any]] = []
        self.drivers: dict[str, str] = {}

    def answer(self, call: HttpRequest) -> Answer:
        table = call.path.removeprefix("/api/v0/")
        if table == "nodes":
            return _rows([_node(name, rank) for name, hosts in self.slices.items() for rank in range(hosts)])
        if table == "tasks":
            is_waiting = call.query.get("filter_values") != "NORMAL_TASK"
            return _rows(self.waiting if is_waiting else [])
        if table == "jobs":
            return _rows([{"job_id": own, "submission_id": name} for own, name in self.drivers.items()])
        if table in ("actors", "placement_groups"):
            return _rows([])
        if call.path == "/api/cluster_status":
            return json_answer("status", {"data": {}})
        return super().answer(call)


def _rows(rows: list[dict[str, Any]]) -> Answer:
    return json_answer("rows", {"data": {"result": {"result": rows}}})


def _node(name: str, rank: int) -> dict[str, Any]:
    labels = {"ray.io/tpu-slice-name": name, "ray.io/tpu-worker-id": str(rank), "ray.io/tpu-pod-type": "v4-8"}
    return {
        "node_id": f"{name}-{rank}", "node_ip": "10.0.0.1", "state": "ALIVE", "is_head_node": False,
        "resources_total": {"CPU": 240.0, "TPU": 4.0}, "labels": labels,
    }  # fmt: skip
