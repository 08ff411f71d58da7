"""Hosts of a cluster's slices in Google Cloud, and the SSH connection to each.

A host with an external address is reached by it, any other through the head. A host name from a user is only compared
with the hosts in Google Cloud.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.fleet.access.ssh import SshHost, find_ssh_head
from tradewind.fleet.cloud.google_api import CloudNotFoundError, execute_request, google_api, list_all, readable_answer
from tradewind.fleet.cloud.heads import HOST_KEYS, NoHeadError, keys_in
from tradewind.fleet.clusters import CLUSTER_LABEL, FleetCluster
from tradewind.fleet.errors import FleetError, nearest_names_hint

_READY: Final = "READY"


@dataclass(frozen=True)
class SliceHost:
    """One host of a slice; ``index`` is its worker ID."""

    slice_name: str
    index: int
    internal_ip: str
    external_ip: str | None = None

    @property
    def name(self) -> str:
        """Name for users."""
        return f"{self.slice_name}:{self.index}"


@dataclass(frozen=True)
class SliceOfHosts:
    """One slice, with its hosts if it is READY."""

    name: str
    state: str
    hosts: tuple[SliceHost, ...]


class ClusterHosts:
    """The hosts of one cluster.

    Args:
        compute: Client of Compute Engine; default: with this machine's credentials.
        tpu: Client of Cloud TPU; default: the same.

    Raises (every method):
        CloudError: Google Cloud refuses, or does not answer.
    """

    def __init__(self, cluster: FleetCluster, *, compute: Any = None, tpu: Any = None) -> None:
        self._cluster = cluster
        self._compute = compute or google_api("compute")
        self._nodes = (tpu or google_api("tpu")).projects().locations().nodes()
        self._parent = f"projects/{cluster.project}/locations/{cluster.zone}"

    def head(self) -> SshHost:
        """Return the connection to the head."""
        return find_ssh_head(self._cluster, self._compute)

    def slices(self) -> list[SliceOfHosts]:
        """Return the slices whose label names the cluster, sorted by name."""
        what = f"The slices of cluster {self._cluster.name} in {self._cluster.project}, {self._cluster.zone}"
        nodes = list_all(self._nodes.list, what, "nodes", parent=self._parent)
        with readable_answer(what):
            own = [node for node in nodes if node.get("labels", {}).get(CLUSTER_LABEL) == self._cluster.name]
            return sorted(map(_slice, own), key=lambda one: one.name)

    def named(self, names: Sequence[str]) -> list[SliceHost]:
        """Return the hosts with these names: ``SLICE`` for all of one, ``SLICE:N``, or an address; each once.

        Raises:
            FleetError: No host has a name.
        """
        slices = self.slices()
        return list(dict.fromkeys(host for name in names for host in self._named(name, slices)))

    def reachable(self, hosts: Sequence[SliceHost]) -> list[SshHost]:
        """Return the connection to each of ``hosts``, in their order.

        Raises:
            NoHeadError: A host has no external address and the cluster no head, or a host published no host keys.
        """
        by_slice: dict[str, list[int]] = defaultdict(list)
        for host in hosts:
            by_slice[host.slice_name].append(host.index)
        keys = {name: self._keys(name, indices) for name, indices in by_slice.items()}
        head = self.head() if any(host.external_ip is None for host in hosts) else None
        return [self._reachable(host, keys[host.slice_name][host.index], head) for host in hosts]

    def _named(self, name: str, slices: Sequence[SliceOfHosts]) -> tuple[SliceHost, ...]:
        hosts = [host for one in slices for host in one.hosts]
        if matches := tuple(host for host in hosts if name in (host.internal_ip, host.external_ip)):
            return matches
        slice_name, colon, index = name.partition(":")
        one = next((one for one in slices if one.name == slice_name), None)
        if one is None:
            near = nearest_names_hint(slice_name, [one.name for one in slices])
            raise FleetError(f"Cluster {self._cluster.name} has no slice or host {name!r}: {near}")
        if not one.hosts:
            raise FleetError(f"Slice {one.name} is {one.state}: login is not possible.")
        if not colon:
            return one.hosts
        chosen = tuple(host for host in one.hosts if str(host.index) == index)
        if not chosen:
            last = len(one.hosts) - 1
            raise FleetError(f"Slice {one.name} has no host {index!r}: it has 0{f' to {last}' if last else ''}.")
        return chosen

    def _keys(self, slice_name: str, indices: Sequence[int]) -> dict[int, tuple[str, ...]]:
        """Return host → its published host keys, for these hosts of a slice."""
        body = {"queryPath": HOST_KEYS, "workerIds": [str(index) for index in indices]}
        request = self._nodes.getGuestAttributes(name=f"{self._parent}/nodes/{slice_name}", body=body)
        what = f"The host keys of {slice_name}"
        try:
            answer = execute_request(request, what)
        except CloudNotFoundError:
            answer = {}
        with readable_answer(what):
            keys = [keys_in(attributes) for attributes in answer.get("guestAttributes", [])]
        if len(keys) != len(indices) or not all(keys):
            raise NoHeadError(
                f"The hosts of {slice_name} have not all written down their SSH host keys, so their identity is "
                "unknown: wait a minute if it is new; else guest attributes are switched off."
            )
        return dict(zip(indices, keys, strict=True))

    def _reachable(self, host: SliceHost, keys: tuple[str, ...], head: SshHost | None) -> SshHost:
        cluster, address = self._cluster, host.external_ip or host.internal_ip
        by = None if host.external_ip else head
        return SshHost(cluster.name, host.name, address, cluster.ssh_user, cluster.ssh_private_key, keys, by)


def _slice(node: Mapping[str, Any]) -> SliceOfHosts:
    name, state = str(node["name"]).rpartition("/")[2], str(node.get("state", "STATE_UNSPECIFIED"))
    hosts = []
    for index, endpoint in enumerate(node.get("networkEndpoints", []) if state == _READY else []):
        external = (endpoint.get("accessConfig") or {}).get("externalIp")
        addresses = [str(ipaddress.ip_address(text)) for text in (endpoint["ipAddress"], external) if text]
        hosts.append(SliceHost(name, index, *addresses))
    return SliceOfHosts(name, state, tuple(hosts))
