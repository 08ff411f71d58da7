"""What a head that was just started knows by itself, apart from what it remembers of the life before.

A head with its state on a disk calls hosts alive that it has not heard of yet, until it misses them after some 25 s;
and its autoscaler's report is that of the life before until it has looked anew. So a host counts once it has told of
itself, and a report once it is younger than the head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tradewind.ray_jobs.nodes.nodes import ALL_NODES, NodeFacts, parse_nodes

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi


@dataclass(frozen=True)
class HeadView:
    """What a head says of its nodes at one time.

    Attributes:
        nodes: Those that it has heard of since it was started, dead ones included.
        looked_at: When its autoscaler has looked last, by the head's clock; None if it has not since then.
    """

    nodes: Sequence[NodeFacts]
    looked_at: float | None


async def fetch_view(api: JobsApi) -> HeadView:
    """What the head says now.

    Raises:
        RayUnreachableError: No answer.
    """
    nodes = await api.get_json("/api/v0/nodes", ALL_NODES)
    return parse_view(
        nodes or {}, await api.get_json("/nodes", {"view": "summary"}) or {}, await api.get_json("/api/cluster_status")
    )


def parse_view(nodes: Mapping[str, Any], summary: Mapping[str, Any], status: Mapping[str, Any] | None) -> HeadView:
    """The same from its answers: its table of nodes, what hosts told of themselves, what its autoscaler wrote."""
    rows = ((nodes.get("data") or {}).get("result") or {}).get("result") or []
    heard = {
        entry["raylet"].get("nodeId")
        for entry in (summary.get("data") or {}).get("summary") or []
        if "now" in entry and "raylet" in entry
    }
    # A head remembers the nodes of its earlier lives too.
    heads = [row.get("start_time_ms") or 0 for row in rows if row.get("is_head_node") and row.get("state") == "ALIVE"]
    return HeadView(
        [node for node in parse_nodes(nodes, status) if node.node_id in heard or not node.is_alive],
        _looked_at(status, max(heads, default=0) / 1000.0),
    )


def _looked_at(status: Mapping[str, Any] | None, started_at: float) -> float | None:
    report = ((status or {}).get("data") or {}).get("clusterStatus") or {}
    looked_at = report.get("time")
    if not isinstance(looked_at, int | float) or not report.get("autoscalerReport"):
        return None
    return float(looked_at) if looked_at > started_at else None
