"""Nodes of a cluster as plain values: alive, dead or possible ones, lost jobs, and TPU slices.

Values come from Ray's HTTP API only; what it does not report is None, never a guess.

Jobs on lost nodes: Ray determines a job's end in an agent on one of the nodes. The agent must be alive and must have
received a request since its start. A head that returned without its node, or lost it, reports such a job as running for
ever. So a follower checks which nodes are alive: one request for all jobs of a cluster per minute, and soon after an
outage. A node whose job has just printed a line needs no check. A missing node counts as gone after longer than Ray
needs to determine the end.

A restarted head with stored state reports hosts as alive that have not contacted it, until it misses them after about
25 s. Its autoscaler's report predates the restart until the next update. So a host counts once it has reported itself,
and a report once it is newer than the head.
"""

from __future__ import annotations

import ast
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tradewind.cloud_tpu.slice_types import POD_TYPE_LABEL, SLICE_NAME_LABEL, WORKER_ID_LABEL
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.errors import RayAuthenticationError, RayUnreachableError

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi

CHECK_INTERVAL_S = 60.0
RECHECK_S = 10.0
"""Check interval while a node is missing."""
CONFIRM_S = 40.0
"""How long a node must be missing. Ray reports a job's end a few seconds after its node's."""
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
class NodeInfo:
    """One Ray node, alive or not.

    Attributes:
        node_id: Its ID.
        ip: Its address.
        is_alive: Whether the head counts it as alive.
        is_head: Whether the head runs on it.
        why: Ray's reason for its death; empty while it is alive.
        total: Its resources by Ray's names (``CPU``, ``GPU``, ``memory``, custom ones).
        free: The free part of them; None if Ray does not report it.
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
        """Name for users: its slice, or its address."""
        return self.labels.get(SLICE_NAME_LABEL) or self.ip or self.node_id[:8]


@dataclass(frozen=True)
class NodeType:
    """A node type that the cluster's autoscaler can add.

    Attributes:
        name: Its name in the cluster's configuration.
        resources: Configured resources of such a node.
        labels: Configured labels; Ray adds others when the node starts.
        max_count: Maximum number of such nodes.
    """

    name: str
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    max_count: int | None = None


async def fetch_nodes(api: JobsApi) -> list[NodeInfo]:
    """Return every node that the head knows, dead ones included.

    Raises:
        RayUnreachableError: No response.
    """
    answer = await api.get_json("/api/v0/nodes", ALL_NODES)
    status = await api.get_json("/api/cluster_status")
    try:
        return parse_nodes(answer, status)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        raise _no_nodes(api) from None


def parse_nodes(answer: Mapping[str, Any] | None, status: Mapping[str, Any] | None) -> list[NodeInfo]:
    """Parse the head's responses: its table of nodes, and its autoscaler's report."""
    free = _free(status)
    return [_node(fields, free) for fields in answer["data"]["result"]["result"]] if answer else []


async def fetch_living(api: JobsApi, nodes: Collection[str]) -> frozenset[str]:
    """Return the IDs in ``nodes`` that the head counts as alive; the result may contain others.

    Raises:
        RayUnreachableError: No response.
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
    return RayUnreachableError(f"{api.cluster} sent invalid nodes, as Ray never does: correct its address.")


async def fetch_node_types(api: JobsApi, head: str) -> list[NodeType] | None:
    """Return the node types that the autoscaler on the node ``head`` can add; None if unknown or absent.

    No endpoint reports them, but both autoscalers write their configuration into the first lines of ``monitor.log``.
    Only the node types are read from it: the rest may hold secrets.
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
    """Parse the node types at the start of a ``monitor.log``; None without an autoscaler that adds nodes."""
    config = _config(log)
    provider = config.get("provider") if isinstance(config, Mapping) else None
    if not isinstance(provider, Mapping) or provider.get("type") == "readonly":  # a cluster without an autoscaler
        return None
    return [
        NodeType(name, _numbers(kind.get("resources")), kind.get("labels") or {}, kind.get("max_workers"))
        for name, kind in (config.get("available_node_types") or {}).items()
        if name != config.get("head_node_type")
    ]


def _config(log: str) -> Any:
    """Parse the autoscaler's configuration: one line of Python in version 1, several of YAML in version 2."""
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
        if line[:2].isdigit() or "\tINFO " in line:  # the next log entry
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


def _node(fields: Mapping[str, Any], free: Mapping[str, Mapping[str, float]]) -> NodeInfo:
    total = _numbers(fields.get("resources_total"))
    left = free.get(fields["node_id"])
    return NodeInfo(
        node_id=fields["node_id"],
        ip=fields.get("node_ip") or "",
        is_alive=fields.get("state") == "ALIVE",
        is_head=bool(fields.get("is_head_node")),
        why=fields.get("state_message") or "",
        total=total,
        free=None if left is None else {name: left.get(_camel_case(name), amount) for name, amount in total.items()},
        labels=fields.get("labels") or {},
    )


def _free(answer: Any) -> dict[str, dict[str, float]]:
    """Return the free resources by node ID, named as the dashboard names them."""
    status = ((answer or {}).get("data") or {}).get("clusterStatus") or {}
    usage = (status.get("loadMetricsReport") or {}).get("usageByNode") or {}
    return {node: {name: total - used for name, (used, total) in amounts.items()} for node, amounts in usage.items()}


def _camel_case(name: str) -> str:
    """Convert a resource's name as the dashboard does in some of its responses."""
    first, *others = name.split("_")
    return first + "".join(part.title() for part in others)


def _numbers(amounts: Any) -> dict[str, float]:
    return {name: float(amount) for name, amount in (amounts or {}).items()}


def head_of(nodes: Sequence[NodeInfo]) -> NodeInfo | None:
    """Return the head's own node."""
    return next((node for node in nodes if node.is_head and node.is_alive), None)


class LostNodes:
    """Lost nodes of running jobs, as one cluster reports them."""

    def __init__(self, api: JobsApi) -> None:
        self._api = api
        self._check_at = time.monotonic() + CHECK_INTERVAL_S
        self._missing_since: dict[str, float] = {}
        self._gone: frozenset[str] = frozenset()

    def check_soon(self) -> None:
        """Check soon after an outage: nodes may have gone meanwhile."""
        self._check_at = time.monotonic()

    async def judge(
        self, found: Mapping[str, JobDetails | None], proven: Collection[str] = ()
    ) -> dict[str, JobDetails | None]:
        """Return the jobs of ``found``; a running one whose node is gone has failed.

        Jobs of ``proven`` are known to run: their nodes are not checked.
        """
        nodes = {
            node for job, details in found.items() if details and job not in proven and (node := details.running_on)
        }
        if nodes and time.monotonic() >= self._check_at:
            await self._check(nodes)
        return {
            job: details.without_node() if details and details.running_on in self._gone else details
            for job, details in found.items()
        }

    async def _check(self, nodes: Collection[str]) -> None:
        now = time.monotonic()
        try:
            living = await fetch_living(self._api, nodes)
        except (RayUnreachableError, RayAuthenticationError, KeyError, TypeError):  # outage, refusal, or another Ray
            self._check_at = now + CHECK_INTERVAL_S
            return
        self._missing_since = {node: self._missing_since.get(node, now) for node in nodes if node not in living}
        self._gone = frozenset(node for node, since in self._missing_since.items() if now - since >= CONFIRM_S)
        self._check_at = now + (RECHECK_S if self._missing_since else CHECK_INTERVAL_S)


@dataclass(frozen=True)
class HeadView:
    """Nodes that a head reports at one time.

    Attributes:
        nodes: Nodes that have contacted it since its start, dead ones included.
        updated_at: Time of its autoscaler's last update, by the head's clock; None if there was none since its start.
    """

    nodes: Sequence[NodeInfo]
    updated_at: float | None


async def fetch_view(api: JobsApi) -> HeadView:
    """Return the head's present view.

    Raises:
        RayUnreachableError: No response.
    """
    nodes = await api.get_json("/api/v0/nodes", ALL_NODES)
    return parse_view(
        nodes or {}, await api.get_json("/nodes", {"view": "summary"}) or {}, await api.get_json("/api/cluster_status")
    )


def parse_view(nodes: Mapping[str, Any], summary: Mapping[str, Any], status: Mapping[str, Any] | None) -> HeadView:
    """Parse the head's responses: its table of nodes, reports of hosts, and its autoscaler's report."""
    rows = ((nodes.get("data") or {}).get("result") or {}).get("result") or []
    heard = {
        entry["raylet"].get("nodeId")
        for entry in (summary.get("data") or {}).get("summary") or []
        if "now" in entry and "raylet" in entry
    }
    # The table also holds nodes from before the head's restarts.
    heads = [row.get("start_time_ms") or 0 for row in rows if row.get("is_head_node") and row.get("state") == "ALIVE"]
    return HeadView(
        [node for node in parse_nodes(nodes, status) if node.node_id in heard or not node.is_alive],
        _updated_at(status, max(heads, default=0) / 1000.0),
    )


def _updated_at(status: Mapping[str, Any] | None, started_at: float) -> float | None:
    report = ((status or {}).get("data") or {}).get("clusterStatus") or {}
    updated_at = report.get("time")
    if not isinstance(updated_at, int | float) or not report.get("autoscalerReport"):
        return None
    return float(updated_at) if updated_at > started_at else None


@dataclass(frozen=True)
class RegisteredSlice:
    """A slice of which Ray knows at least one live host.

    Attributes:
        name: Its name.
        slice_type: Its type, such as ``v4-16``.
        hosts: Number of its live hosts.
        is_free: Whether all chips of these hosts are unused; None if Ray does not report it.
    """

    name: str
    slice_type: str
    hosts: int
    is_free: bool | None


def registered_slices(nodes: Iterable[NodeInfo]) -> list[RegisteredSlice]:
    """Return the slices with live hosts, by name."""
    by_name: dict[str, list[NodeInfo]] = defaultdict(list)
    for node in nodes:
        if node.is_alive and (name := node.labels.get(SLICE_NAME_LABEL)):
            by_name[name].append(node)
    return [_slice(name, by_name[name]) for name in sorted(by_name)]


def hosts_alive(nodes: Iterable[NodeInfo]) -> dict[str, int]:
    """Return the number of live hosts per slice name."""
    return {known.name: known.hosts for known in registered_slices(nodes)}


def _slice(name: str, nodes: list[NodeInfo]) -> RegisteredSlice:
    """Build a slice. A returned host counts once: Ray lists it twice until it notices its absence."""
    hosts = {node.labels.get(WORKER_ID_LABEL) or node.node_id for node in nodes}
    chips = [None if node.free is None else node.free.get("TPU") == node.total.get("TPU") for node in nodes]
    is_free = False if False in chips else None if None in chips else True
    return RegisteredSlice(name, nodes[0].labels.get(POD_TYPE_LABEL, ""), len(hosts), is_free)
