"""Heads of clusters, found by labels, since each new head has another name and address."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tradewind.fleet.cloud.google_api import CloudNotFoundError, execute_request, google_api, list_all, readable_answer
from tradewind.fleet.clusters import CLUSTER_LABEL, FleetCluster
from tradewind.fleet.errors import FleetError

TYPE_LABEL: Final = "ray-node-type"
HEAD: Final = "head"
RUNNING: Final = "RUNNING"
HOST_KEYS: Final = "hostkeys/"
"""Path of a machine's SSH host keys in its guest attributes."""
_KEY: Final = re.compile(r"[a-z0-9@.-]{1,100} [A-Za-z0-9+/=]{16,10000}")


class NoHeadError(FleetError):
    """The cluster has no running head, or none whose identity is known."""


class SeveralHeadsError(NoHeadError):
    """The cluster has more than one head."""


@dataclass(frozen=True)
class ClusterHead:
    """The machine with the head of a cluster.

    Attributes:
        internal_ip: Its address in the project's network.
        external_ip: Its public address, if it has one.
    """

    name: str
    internal_ip: str
    external_ip: str | None


class PlacedCluster(Protocol):
    """The facts about a cluster that identify its head."""

    @property
    def name(self) -> str: ...
    @property
    def project(self) -> str: ...
    @property
    def zone(self) -> str: ...


def find_head(cluster: PlacedCluster, compute: Any = None) -> ClusterHead:
    """Find the head of ``cluster``.

    Args:
        compute: Client of Compute Engine; default: with this machine's credentials.

    Raises:
        NoHeadError: No head runs, or more than one.
        CloudError: Google Cloud does not answer.
    """
    compute = compute or google_api("compute")
    labels = {CLUSTER_LABEL: cluster.name, TYPE_LABEL: HEAD}
    query = " AND ".join(f"(labels.{label} = {value})" for label, value in labels.items())
    what = f"The head of cluster {cluster.name} in {cluster.project}, {cluster.zone}"
    found = list_all(compute.instances().list, what, "items", project=cluster.project, zone=cluster.zone, filter=query)
    with readable_answer(what):
        return _running_head(cluster, [one for one in found if labels.items() <= one.get("labels", {}).items()])


def _running_head(cluster: PlacedCluster, own: Sequence[Mapping[str, Any]]) -> ClusterHead:
    heads = [machine for machine in own if machine.get("status") == RUNNING]
    if len(heads) > 1:
        names = ", ".join(sorted(machine["name"] for machine in heads))
        raise SeveralHeadsError(f"Cluster {cluster.name} has {len(heads)} heads: {names}. Stop it, and start it again.")
    if not heads:
        state = f" Its head {own[0]['name']} is {own[0].get('status')}." if own else ""
        raise NoHeadError(f"Cluster {cluster.name} has no head that runs in {cluster.zone}.{state} Start it first.")
    interface = heads[0]["networkInterfaces"][0]
    external = [config["natIP"] for config in interface.get("accessConfigs", []) if config.get("natIP")]
    return ClusterHead(heads[0]["name"], interface["networkIP"], external[0] if external else None)


def host_keys(cluster: FleetCluster, head: ClusterHead, compute: Any = None) -> tuple[str, ...]:
    """Return the SSH host keys that the head published when it was created, as in ``known_hosts`` but without a name.

    Raises:
        NoHeadError: It published none.
        CloudError: Google Cloud does not answer.
    """
    compute = compute or google_api("compute")
    what = f"The host keys of {head.name}"
    place = {"project": cluster.project, "zone": cluster.zone, "instance": head.name}
    try:
        found = execute_request(compute.instances().getGuestAttributes(**place, queryPath=HOST_KEYS), what)
    except CloudNotFoundError:
        found = {}
    with readable_answer(what):
        keys = keys_in(found)
    if not keys:
        raise NoHeadError(
            f"{head.name} has written down no SSH host keys, so its identity is unknown: wait a minute "
            "if it is new; else its image lacks Google's guest agent, or guest attributes are switched off."
        )
    return keys


def keys_in(attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the SSH host keys in a machine's guest attributes, as in ``known_hosts`` but without a name."""
    items = attributes.get("queryValue", {}).get("items", [])
    return tuple(line for item in items if _KEY.fullmatch(line := f"{item.get('key')} {item.get('value')}"))
