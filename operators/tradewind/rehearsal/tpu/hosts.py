"""Hosts of a simulated Cloud TPU node: real Ray nodes on this machine, or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tradewind.cloud_tpu.slice_types import SliceType
from tradewind.rehearsal.cloud.metadata_server import HostMetadata, MetadataServer
from tradewind.rehearsal.local.ray import LocalRay, LocalRayError, LocalSlice, host_name


class HostsError(RuntimeError):
    """The hosts of a slice did not start."""


@dataclass(frozen=True)
class SliceMetadata:
    """Metadata of a slice for its hosts."""

    name: str
    shape: SliceType
    labels: Mapping[str, str]
    metadata: Mapping[str, str]
    preemptible: bool


class SliceHosts(Protocol):
    """Starts and stops the hosts of slices."""

    def start(self, described: SliceMetadata) -> list[str]:
        """Start all hosts of a slice; return their addresses once they run.

        Raises:
            HostsError: They did not start; none remains.
        """

    def kill(self, name: str) -> None:
        """Kill every host of the slice, with all its processes."""

    def notice(self, name: str) -> None:
        """Announce a preemption to every host of the slice."""

    def host_keys(self, name: str) -> Sequence[Mapping[str, str]]:
        """Return the SSH host keys of each host of the slice, by type, as the hosts published them."""


class NullHosts:
    """No hosts, for users of the API alone: a node is READY at once, without processes."""

    def start(self, described: SliceMetadata) -> list[str]:
        return [f"10.130.0.{number + 2}" for number in range(described.shape.hosts)]

    def kill(self, name: str) -> None:
        """Do nothing: there are no hosts."""

    def notice(self, name: str) -> None:
        """Do nothing: there are no hosts."""

    def host_keys(self, name: str) -> Sequence[Mapping[str, str]]:
        return ()


class RayHosts:
    """Each host is a node of the Ray cluster, with its own metadata and ``env`` in its environment."""

    def __init__(self, ray: LocalRay, metadata: MetadataServer, env: Callable[[], Mapping[str, str]]) -> None:
        self._ray = ray
        self._metadata = metadata
        self._env = env

    def start(self, described: SliceMetadata) -> list[str]:
        addresses: dict[int, str] = {}

        def env_of(worker_id: int, ip: str) -> dict[str, str]:
            addresses[worker_id] = ip
            about = HostMetadata(
                described.name,
                worker_id,
                described.shape.name,
                described.labels,
                described.metadata,
                described.preemptible,
            )
            served_at = self._metadata.add_host(host_name(described.name, worker_id), ip, about)
            # Google's libraries read the first, tensorstore the second, and check the third to detect a VM.
            names = ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP")
            return {**self._env(), **dict.fromkeys(names, served_at)}

        try:
            self._ray.start_slice(LocalSlice(described.name, described.shape.name), env_of=env_of)
        except (LocalRayError, OSError) as error:
            self.kill(described.name)
            raise HostsError(str(error)) from None
        return [addresses[worker_id] for worker_id in sorted(addresses)]

    def kill(self, name: str) -> None:
        self._ray.kill_slice(name)
        self._metadata.drop_slice(name)

    def notice(self, name: str) -> None:
        self._metadata.preempt_slice(name)

    def host_keys(self, name: str) -> Sequence[Mapping[str, str]]:
        """Return no keys: these hosts have no logins."""
        return ()
