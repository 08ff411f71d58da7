"""What creates a slice that people add: it has the cluster's label, and none that the autoscaler takes for its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tradewind.cloud_tpu.resources import is_queue_body
from tradewind.cloud_tpu.slice_types import SliceType
from tradewind.fleet.cloud.heads import TYPE_LABEL
from tradewind.fleet.clusters import CLUSTER_LABEL, Capacity, FleetCluster

UNMANAGED: Final = "unmanaged"
"""What Ray calls nodes of a cluster that its autoscaler leaves alone."""
_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


def manual_body(
    cluster: FleetCluster, name: str, kind: SliceType, capacity: Capacity, start_script: str
) -> dict[str, Any]:
    """The body of a create call: of a TPU VM if it is preemptible, else of a queued resource, which waits."""
    node = {
        "acceleratorType": kind.name,
        "runtimeVersion": cluster.generation.runtime_version,
        "labels": {CLUSTER_LABEL: cluster.name, TYPE_LABEL: UNMANAGED},
        "schedulingConfig": {capacity.scheduling_field: True},
        "serviceAccount": {"email": cluster.worker_service_account, "scope": [_SCOPE]},
        "networkConfig": {"enableExternalIps": True},
        "metadata": {"startup-script": start_script, "enable-guest-attributes": "TRUE"},
    }
    match capacity:
        case Capacity.PREEMPTIBLE:
            return node
        case Capacity.RESERVED:
            tier: dict[str, Any] = {"guaranteed": {}}
        case Capacity.BEST_EFFORT:
            tier = {"spot": {}}
    return {**tier, "tpu": {"nodeSpec": [{"nodeId": name, "node": node}]}}


def resized_body(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """``new`` on what ``old`` stands on: the same reservation, network and account, also if people had chosen those."""
    kept = ("schedulingConfig", "serviceAccount", "networkConfig", "tags")
    is_queue = is_queue_body(old)
    node, before = _node(new), _node(old)
    node = {**node, **{key: before[key] for key in kept if key in before}}
    if not is_queue:
        return node
    name = (new["tpu"]["nodeSpec"][0] if is_queue_body(new) else {}).get("nodeId")
    rest = {key: value for key, value in old.items() if key != "tpu"}
    return {**rest, "tpu": {"nodeSpec": [{"nodeId": name, "node": node}]}}


def _node(body: Mapping[str, Any]) -> dict[str, Any]:
    return dict(body["tpu"]["nodeSpec"][0].get("node") or {}) if is_queue_body(body) else dict(body)
