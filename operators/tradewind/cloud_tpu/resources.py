"""Nodes and queued resources as plain values, and the bodies that recreate them.

Both are read from the JSON of the Cloud TPU API v2 (field names in camelCase, enums as names). A slice's name is its
node's ID, which Ray also uses as the label ``ray.io/tpu-slice-name`` on the slice's hosts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from tradewind.cloud_tpu.errors import BadEndpointError
from tradewind.cloud_tpu.slice_types import SLICE_TYPES

_NODE_INPUTS: Final = (
    "description", "acceleratorType", "acceleratorConfig", "runtimeVersion", "networkConfig", "networkConfigs",
    "serviceAccount", "schedulingConfig", "labels", "metadata", "tags", "dataDisks", "shieldedInstanceConfig",
)  # fmt: skip
"""Without ``cidrBlock``: the server sets it, and refuses it in a creation."""
_QUEUE_INPUTS: Final = ("spot", "guaranteed", "reservationName")
ANY_KIND: Final = "*"
"""Placeholder for any ``body_kind``."""
_PLACE: Final = re.compile(r"[a-z0-9][a-z0-9.:-]{0,98}")
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
WITHOUT_MACHINES: Final = frozenset({"PREEMPTED", "TERMINATED", "STOPPED"})
"""States of a node whose hosts are gone, although Ray may report them alive for some seconds."""
_RAY_KIND: Final = "ray-node-type"
"""Label that distinguishes heads and workers of Ray's autoscaler."""


@dataclass(frozen=True)
class TpuNode:
    """One node of the API: a slice, alone or as part of a queued resource.

    Attributes:
        name: Its ID, without project and zone.
        state: ``READY``, ``PREEMPTED`` and so on.
        identity: Differs between successive nodes of the same name.
        slice_type: Its accelerator type; empty if it was created by topology.
        hosts: Number of its hosts; None if unknown.
        queue: The ID of its queued resource, if any.
        is_reserved: Whether it uses reserved capacity.
        labels: Its labels.
        created_at: Its creation time, in seconds since the epoch; None if the API does not report it.
        body: Body of a create call for an equal node.
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
        """Return the node that the API describes."""
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
        """Whether Ray's autoscaler created it and will replace it."""
        return self.labels.get(_RAY_KIND) == "worker"

    @property
    def is_head(self) -> bool:
        """Whether it is the head of a Ray cluster."""
        return self.labels.get(_RAY_KIND) == "head"


@dataclass(frozen=True)
class QueuedTpu:
    """One queued resource: the request for one or more slices, and its state.

    Attributes:
        name: Its ID, without project and zone.
        state: ``ACTIVE``, ``SUSPENDED`` and so on.
        identity: Differs between successive queued resources of the same name.
        nodes: Names of its slices.
        is_reserved: Whether it uses reserved capacity.
        labels: Labels that all of its slices have.
        why: The API's reason for its failure, if it failed.
        created_at: Its creation time, in seconds since the epoch; None if the API does not report it.
        body: Body of a create call for an equal one.
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
        """Return the queued resource that the API describes."""
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
    """Return the inputs of a node's creation, without values that the server sets."""
    body = {name: fields[name] for name in _NODE_INPUTS if fields.get(name)}
    if "acceleratorType" in body:  # the API sets both, and accepts only one
        body.pop("acceleratorConfig", None)
    if "networkConfig" in body:
        body.pop("networkConfigs", None)
    return body


def queue_body(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a queued resource's creation, without times, which would be in the past."""
    body: dict[str, Any] = {name: fields[name] for name in _QUEUE_INPUTS if name in fields}
    if span := (fields.get("queueingPolicy") or {}).get("validUntilDuration"):
        body["queueingPolicy"] = {"validUntilDuration": span}
    specs = (fields.get("tpu") or {}).get("nodeSpec") or []
    specs = [{**spec, "node": node_body(spec.get("node") or {})} for spec in specs]
    return {**body, "tpu": {"nodeSpec": specs}}


def labelled_body(queue: QueuedTpu, nodes: Sequence[TpuNode]) -> dict[str, Any]:
    """Return a body that recreates the queue with its nodes' present labels, which name its owner."""
    specs = []
    for spec in queue.body["tpu"]["nodeSpec"]:
        names = node_names(queue.name, {"tpu": {"nodeSpec": [spec]}})
        labels = [set(node.labels.items()) for node in nodes if node.name in names]
        node = spec.get("node") or {}
        common = {**(node.get("labels") or {}), **(dict(set.intersection(*labels)) if labels else {})}
        specs.append({**spec, "node": {**node, "labels": common}} if common else spec)
    return {**queue.body, "tpu": {"nodeSpec": specs}}


def check_place(project: str, location: str) -> None:
    """Require a project and a zone or region that name no other resource in Google's URLs.

    Raises:
        BadEndpointError: They might.
    """
    for what, text in (("project", project), ("zone or region", location)):
        if not _PLACE.fullmatch(text):
            raise BadEndpointError(f"{text!r} is no {what}: lowercase letters, digits and hyphens.")


def is_name(text: str) -> bool:
    """Return whether Google accepts ``text`` as the name of a node or queued resource."""
    return _NAME.fullmatch(text) is not None


def body_kind(body: Mapping[str, Any]) -> str:
    """Return the part of ``body`` that a refusal depends on: no names, labels, metadata or description."""
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
    """Return whether ``body`` creates a queued resource; else it creates a node."""
    return "tpu" in body


def node_names(queue: str, body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the slices of the queued resource ``queue``."""
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
