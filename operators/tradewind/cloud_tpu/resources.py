"""Nodes and queued resources as plain values, and what it takes to create each of them again.

Both are read from the JSON of the Cloud TPU API v2 (field names in camelCase, enums as names). A slice's name is its
node's id, which is also what Ray takes as the label ``ray.io/tpu-slice-name`` on the slice's hosts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from tradewind.cloud_tpu.slice_types import SLICE_TYPES

_NODE_INPUTS: Final = (
    "description", "acceleratorType", "acceleratorConfig", "runtimeVersion", "networkConfig", "networkConfigs",
    "serviceAccount", "schedulingConfig", "labels", "metadata", "tags", "dataDisks", "shieldedInstanceConfig",
)  # fmt: skip
"""Without ``cidrBlock``: the server fills it in, and refuses it when it is asked for again."""
_QUEUE_INPUTS: Final = ("spot", "guaranteed", "reservationName")
ANY_KIND: Final = "*"
"""In place of a ``body_kind``: whatever is asked for."""
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
WITHOUT_MACHINES: Final = frozenset({"PREEMPTED", "TERMINATED", "STOPPED"})
"""States of a node whose hosts are gone, whatever Ray, which misses them some seconds later, still says of them."""
_RAY_KIND: Final = "ray-node-type"
"""The label by which Ray's autoscaler tells its heads from its workers."""


@dataclass(frozen=True)
class TpuNode:
    """One node of the API: a slice, or one slice of a queued resource for several.

    Attributes:
        name: Its id, without project and zone.
        state: ``READY``, ``PREEMPTED`` and so on.
        identity: Differs between two nodes that had the same name one after the other.
        slice_type: Its accelerator type; empty if it was asked for by topology.
        hosts: How many hosts it has; None if that cannot be told.
        queue: The id of the queued resource that it came from, if any.
        is_reserved: Whether it stands on reserved capacity.
        labels: Its labels.
        created_at: When it was created, in seconds since the epoch; None if the API does not say.
        body: What creates one like it: the body of a create call.
    """

    name: str
    state: str
    identity: str = ""
    slice_type: str = ""
    hosts: int | None = None
    queue: str | None = None
    is_reserved: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    created_at: float | None = None
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> TpuNode:
        """The node that the API describes."""
        kind = str(fields.get("acceleratorType", ""))
        return TpuNode(
            name=_last(fields["name"]),
            state=str(fields.get("state", "STATE_UNSPECIFIED")),
            identity=f"{fields.get('id', '')}/{fields.get('createTime', '')}",
            slice_type=kind,
            hosts=SLICE_TYPES[kind].hosts if kind in SLICE_TYPES else len(fields.get("networkEndpoints") or []) or None,
            queue=_last(fields["queuedResource"]) if fields.get("queuedResource") else None,
            is_reserved=bool((fields.get("schedulingConfig") or {}).get("reserved")),
            labels=fields.get("labels") or {},
            created_at=_seconds(fields.get("createTime")),
            body=node_body(fields),
        )

    @property
    def is_of_autoscaler(self) -> bool:
        """Whether Ray's autoscaler made it and will make another in its place."""
        return self.labels.get(_RAY_KIND) == "worker"

    @property
    def is_head(self) -> bool:
        """Whether a Ray cluster has its head on it."""
        return self.labels.get(_RAY_KIND) == "head"


@dataclass(frozen=True)
class QueuedTpu:
    """One queued resource: the request for one slice or several, and what became of it.

    Attributes:
        name: Its id, without project and zone.
        state: ``ACTIVE``, ``SUSPENDED`` and so on.
        identity: Differs between two queued resources that had the same name one after the other.
        nodes: The names of the slices that it is for.
        is_reserved: Whether it stands on reserved capacity.
        labels: The labels that all of its slices have.
        why: The API's words on why it failed, if it did.
        created_at: When it was created, in seconds since the epoch; None if the API does not say.
        body: What creates one like it: the body of a create call.
    """

    name: str
    state: str
    identity: str = ""
    nodes: tuple[str, ...] = ()
    is_reserved: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    created_at: float | None = None
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> QueuedTpu:
        """The queued resource that the API describes."""
        name = _last(fields["name"])
        state = fields.get("state") or {}
        specs = (fields.get("tpu") or {}).get("nodeSpec") or []
        labels = [set(((spec.get("node") or {}).get("labels") or {}).items()) for spec in specs]
        return QueuedTpu(
            name=name,
            state=str(state.get("state", "STATE_UNSPECIFIED")),
            identity=str(fields.get("createTime", "")),
            nodes=node_names(name, fields),
            is_reserved=any(key in fields for key in ("guaranteed", "reservationName"))
            or any(((spec.get("node") or {}).get("schedulingConfig") or {}).get("reserved") for spec in specs),
            labels=dict(set.intersection(*labels)) if labels else {},
            why=str(((state.get("failedData") or {}).get("error") or {}).get("message", "")),
            created_at=_seconds(fields.get("createTime")),
            body=queue_body(fields),
        )


def node_body(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What of a node's description is asked for when it is created, and not found out afterwards."""
    body = {name: fields[name] for name in _NODE_INPUTS if fields.get(name)}
    if "acceleratorType" in body:  # the API fills in the other one, and takes only one of them
        body.pop("acceleratorConfig", None)
    if "networkConfig" in body:
        body.pop("networkConfigs", None)
    return body


def queue_body(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a queued resource. Points in time are left out: they are over when it is created again."""
    body: dict[str, Any] = {name: fields[name] for name in _QUEUE_INPUTS if name in fields}
    if span := (fields.get("queueingPolicy") or {}).get("validUntilDuration"):
        body["queueingPolicy"] = {"validUntilDuration": span}
    specs = (fields.get("tpu") or {}).get("nodeSpec") or []
    specs = [{**spec, "node": node_body(spec.get("node") or {})} for spec in specs]
    return {**body, "tpu": {"nodeSpec": specs}}


def labelled_body(queue: QueuedTpu, nodes: Sequence[TpuNode]) -> dict[str, Any]:
    """What creates the queued resource again, with the labels that its nodes have by now: they say whose it is."""
    specs = []
    for spec in queue.body["tpu"]["nodeSpec"]:
        names = node_names(queue.name, {"tpu": {"nodeSpec": [spec]}})
        labels = [set(node.labels.items()) for node in nodes if node.name in names]
        node = spec.get("node") or {}
        common = {**(node.get("labels") or {}), **(dict(set.intersection(*labels)) if labels else {})}
        specs.append({**spec, "node": {**node, "labels": common}} if common else spec)
    return {**queue.body, "tpu": {"nodeSpec": specs}}


def is_name(text: str) -> bool:
    """Whether Google takes it for the name of a node or of a queued resource."""
    return _NAME.fullmatch(text) is not None


def body_kind(body: Mapping[str, Any]) -> str:
    """What a refusal of ``body`` is believed to be about: all of it but names, labels, metadata and description."""
    if is_queue_body(body):
        specs = body["tpu"].get("nodeSpec") or []
        plain: Any = [
            {key: body[key] for key in body if key != "tpu"},
            [_plain(one.get("node") or {}) for one in specs],
        ]
    else:
        plain = _plain(body)
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def _plain(node: Mapping[str, Any]) -> dict[str, Any]:
    return {key: node[key] for key in node if key not in ("labels", "metadata", "description")}


def is_queue_body(body: Mapping[str, Any]) -> bool:
    """Whether ``body`` creates a queued resource; else it creates a node."""
    return "tpu" in body


def node_names(queue: str, body: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the slices that a queued resource called ``queue`` is for."""
    names: list[str] = []
    for spec in (body.get("tpu") or {}).get("nodeSpec") or []:
        several = spec.get("multisliceParams") or spec.get("multiNodeParams") or {}
        if several:
            prefix = several.get("nodeIdPrefix") or queue
            names += [f"{prefix}-{index}" for index in range(int(several.get("nodeCount", 1)))]
        else:
            names.append(spec.get("nodeId") or queue)
    return tuple(names)


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _seconds(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None
