"""Where engines run: what an engine's worker asks of Ray, and whether any node could ever give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tradewind.cloud_tpu.slice_types import POD_TYPE_LABEL, head_resource, slice_type
from tradewind.ray_jobs.demand import GRACE_S, Demand, explain_pending
from tradewind.ray_jobs.nodes import NodeInfo, NodeType, parse_node_types
from tradewind.runtime.pods.nodes import is_autoscaled
from tradewind.steps.resources import Cpu, Gpu, TpuSlice

_TYPE: Final = "accelerator_type:"
_TYPE_AMOUNT: Final = 0.001
_HEAD: Final = "node:__internal_head__"


def worker_options(resources: Cpu | Gpu | TpuSlice) -> dict[str, Any]:
    """Return Ray's options of an actor that has these resources."""
    if isinstance(resources, TpuSlice):
        shape = slice_type(resources.slice_type)
        return {
            "num_cpus": 0,
            "resources": {"TPU": shape.chips_per_host, head_resource(shape.name): 1},
            "label_selector": {POD_TYPE_LABEL: shape.name},
        }
    options: dict[str, Any] = {"num_cpus": resources.num_cpus}
    if resources.memory_bytes is not None:
        options["memory"] = resources.memory_bytes
    if isinstance(resources, Gpu):
        options["num_gpus"] = resources.count
        if resources.type is not None:
            options["resources"] = {f"{_TYPE}{resources.type}": _TYPE_AMOUNT}
    return options


def why_infeasible(resources: Cpu | Gpu | TpuSlice) -> str | None:
    """Return why no node of the connected cluster could ever run an engine; None if one could.

    Ray itself would wait for ever, and say nothing.
    """
    options = worker_options(resources)
    amounts = {
        "CPU": options["num_cpus"],
        "GPU": options.get("num_gpus", 0),
        "memory": options.get("memory", 0),
        **options.get("resources", {}),
    }
    demand = Demand({name: amount for name, amount in amounts.items() if amount}, options.get("label_selector", {}))
    nodes = _nodes()
    if any(demand.fits(node.total, node.labels) for node in nodes):
        return None
    kinds = _node_types(nodes)
    if kinds is None and is_autoscaled():
        return None  # unknown
    if not explain_pending(demand, nodes, kinds, GRACE_S, GRACE_S).is_infeasible:
        return None
    return explain_pending(demand, nodes, kinds, 0.0, GRACE_S).cause


def _nodes() -> list[NodeInfo]:
    import ray

    return [
        NodeInfo(
            node_id=row["NodeID"],
            ip=row["NodeManagerAddress"],
            is_alive=bool(row["Alive"]),
            is_head=_HEAD in row["Resources"],
            total=row["Resources"],
            labels=row.get("Labels") or {},
        )
        for row in ray.nodes()
    ]


def _node_types(nodes: Sequence[NodeInfo]) -> list[NodeType] | None:
    """Return what the autoscaler can add, as its log on the head says; None without one."""
    from ray.util.state import get_log

    head = next((node for node in nodes if node.is_head and node.is_alive), None)
    if head is None:
        return None
    try:
        lines = list(get_log(node_id=head.node_id, filename="monitor.log", tail=-1))
    except Exception:  # Ray has no such log, or its dashboard does not answer
        return None
    return parse_node_types("".join(lines))
