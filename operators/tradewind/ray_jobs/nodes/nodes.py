"""What a cluster says of its nodes, as plain values: who is there, who has gone and why, and what could still come.

Only what Ray tells over HTTP counts; what it does not tell is None, never a guess.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tradewind.cloud_tpu.ray_labels import SLICE_NAME_LABEL
from tradewind.ray_jobs.errors import RayUnreachableError

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi

ALL_NODES = {"detail": "1", "limit": "10000"}
_LIVING_NODES = (
    ("limit", "10000"),
    ("filter_keys", "state"),
    ("filter_predicates", "="),
    ("filter_values", "ALIVE"),
)
_MONITOR_LOG = {"filename": "monitor.log", "lines": "-1"}
_LOG_BYTES = 512 * 1024
_V1_CONFIG = "StandardAutoscaler: "
_V2_CONFIG = "Using Autoscaling Config: "


@dataclass(frozen=True)
class NodeFacts:
    """One Ray node, alive or not.

    Attributes:
        node_id: Its id.
        ip: Its address.
        is_alive: Whether the head counts it as alive.
        is_head: Whether the head runs on it.
        why: Ray's words on its death; empty while it lives.
        total: Its resources by Ray's names (``CPU``, ``GPU``, ``memory``, custom ones).
        free: What of them is free now; None where Ray does not tell.
        labels: Its labels.
    """

    node_id: str
    ip: str = ""
    is_alive: bool = True
    is_head: bool = False
    why: str = ""
    total: Mapping[str, float] = field(default_factory=dict)
    free: Mapping[str, float] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What people call it: its slice, or its address."""
        return self.labels.get(SLICE_NAME_LABEL) or self.ip or self.node_id[:8]


@dataclass(frozen=True)
class NodeType:
    """One kind of node that the cluster's autoscaler can add.

    Attributes:
        name: Its name in the cluster's configuration.
        resources: What such a node will have, as configured.
        labels: The labels that are configured for it; Ray adds others when the node starts.
        most: How many of them there may be.
    """

    name: str
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    most: int | None = None


async def fetch_nodes(api: JobsApi) -> list[NodeFacts]:
    """Every node that the head knows, dead ones included.

    Raises:
        RayUnreachableError: No answer.
    """
    answer = await api.get_json("/api/v0/nodes", ALL_NODES)
    status = await api.get_json("/api/cluster_status")
    try:
        return parse_nodes(answer, status)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        raise _no_nodes(api) from None


def parse_nodes(answer: Mapping[str, Any] | None, status: Mapping[str, Any] | None) -> list[NodeFacts]:
    """The same from the head's answers: its table of nodes, and what its autoscaler has written."""
    free = _free(status)
    return [_node(fields, free) for fields in answer["data"]["result"]["result"]] if answer else []


async def fetch_living(api: JobsApi, nodes: Collection[str]) -> frozenset[str]:
    """Those of ``nodes``, by their ids, that the head counts as alive; others may be among them.

    Raises:
        RayUnreachableError: No answer.
    """
    query = list(_LIVING_NODES)
    if len(nodes) == 1:
        [node] = nodes
        query += [("filter_keys", "node_id"), ("filter_predicates", "="), ("filter_values", node)]
    answer = await api.get_json("/api/v0/nodes", query)
    try:
        return frozenset(fields["node_id"] for fields in answer["data"]["result"]["result"])
    except (LookupError, TypeError):
        raise _no_nodes(api) from None


def _no_nodes(api: JobsApi) -> RayUnreachableError:
    return RayUnreachableError(f"{api.cluster} answered about nodes what Ray never answers: correct its address.")


async def fetch_node_types(api: JobsApi, head: str) -> list[NodeType] | None:
    """What the autoscaler on the node ``head`` can add; None where there is none, or it cannot be known.

    No endpoint tells it, but both autoscalers write their configuration into the first lines of ``monitor.log``. Of
    it, only the node types are looked at: the rest may hold what nobody should see.
    """
    async with api.request("GET", "/api/v0/logs/file", params={**_MONITOR_LOG, "node_id": head}) as response:
        if response.status == 404:
            return None
        text = b""
        async for chunk in response.content.iter_any():
            text += chunk
            if len(text) >= _LOG_BYTES or _config_is_complete(text):
                break
    return parse_node_types(text.decode(errors="replace"))


def parse_node_types(log: str) -> list[NodeType] | None:
    """The node types in the beginning of a ``monitor.log``; None if there is no autoscaler that can add nodes."""
    config = _config(log)
    provider = config.get("provider") if isinstance(config, Mapping) else None
    if not isinstance(provider, Mapping) or provider.get("type") == "readonly":  # of a cluster without an autoscaler
        return None
    return [
        NodeType(name, _numbers(kind.get("resources")), kind.get("labels") or {}, kind.get("max_workers"))
        for name, kind in (config.get("available_node_types") or {}).items()
        if name != config.get("head_node_type")
    ]


def _config(log: str) -> Any:
    """The autoscaler's configuration: one line of Python in the first generation, several of YAML in the second."""
    _, v1, rest = log.partition(_V1_CONFIG)
    if v1:
        try:
            return ast.literal_eval(rest.partition("\n")[0])
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return None
    _, v2, rest = log.partition(_V2_CONFIG)
    if not v2:
        return None
    import yaml  # type: ignore[import-untyped]

    lines = []
    for line in rest.split("\n")[1:]:
        if line[:2].isdigit() or "\tINFO " in line:  # the next entry of the log
            break
        lines.append(line)
    try:
        return yaml.safe_load("\n".join(lines))
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def _config_is_complete(text: bytes) -> bool:
    for start in (_V1_CONFIG.encode(), _V2_CONFIG.encode()):
        _, found, rest = text.partition(start)
        if found:
            return b"\n20" in rest
    return False


def _node(fields: Mapping[str, Any], free: Mapping[str, Mapping[str, float]]) -> NodeFacts:
    total = _numbers(fields.get("resources_total"))
    left = free.get(fields["node_id"])
    return NodeFacts(
        node_id=fields["node_id"],
        ip=fields.get("node_ip") or "",
        is_alive=fields.get("state") == "ALIVE",
        is_head=bool(fields.get("is_head_node")),
        why=fields.get("state_message") or "",
        total=total,
        free=None if left is None else {name: left.get(_googled(name), amount) for name, amount in total.items()},
        labels=fields.get("labels") or {},
    )


def _free(answer: Any) -> dict[str, dict[str, float]]:
    """Node id -> what is free there, by the names that the dashboard makes of Ray's."""
    status = ((answer or {}).get("data") or {}).get("clusterStatus") or {}
    usage = (status.get("loadMetricsReport") or {}).get("usageByNode") or {}
    return {node: {name: total - used for name, (used, total) in amounts.items()} for node, amounts in usage.items()}


def _googled(name: str) -> str:
    """What the dashboard makes of a resource's name in some of its answers."""
    first, *others = name.split("_")
    return first + "".join(part.title() for part in others)


def _numbers(amounts: Any) -> dict[str, float]:
    return {name: float(amount) for name, amount in (amounts or {}).items()}


def head_of(nodes: Sequence[NodeFacts]) -> NodeFacts | None:
    """The head's own node."""
    return next((node for node in nodes if node.is_head and node.is_alive), None)
