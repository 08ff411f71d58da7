"""The fleet as values: its clusters, and what follows from what their file says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tradewind.cloud_tpu.slice_types import SliceType
from tradewind.fleet.errors import UnknownClusterError, meant
from tradewind.fleet.generations import TpuGeneration

CLUSTER_LABEL = "ray-cluster-name"
"""What Ray's autoscaler calls the label of its nodes that names their cluster."""
BASE_NODE_TYPE = "tpu_worker"
"""What the autoscaler calls slices of a cluster's base type, whichever that is."""


class Capacity(StrEnum):
    """What slices stand on; the name is the fleet file's."""

    PREEMPTIBLE = "preemptible"
    """Google may take them at any time, and does after a day."""
    RESERVED = "reserved"
    """They are the project's own, for as long as it has reserved them."""
    BEST_EFFORT = "best_effort"
    """Google may take them at any time: what its API calls spot."""

    @property
    def scheduling_field(self) -> str:
        """The field of a node's ``schedulingConfig`` that asks for it."""
        return "spot" if self is Capacity.BEST_EFFORT else self.value


@dataclass(frozen=True)
class SlicePool:
    """The slices of one type in a cluster.

    Attributes:
        node_type: What the autoscaler calls them.
        minimum: How many stay up.
        maximum: How many there may be.
    """

    node_type: str
    kind: SliceType
    minimum: int
    maximum: int


@dataclass(frozen=True)
class FleetCluster:
    """One cluster, with the file's defaults filled in. The fields are the file's."""

    name: str
    project: str
    zone: str
    generation: TpuGeneration
    pools: tuple[SlicePool, ...]
    """Its slice types, the base type first."""
    max_workers: int
    bucket: str
    repository: str
    image: str
    tag: str
    capacity: Capacity
    token_secret: str
    environment: Mapping[str, str]
    head_service_account: str
    worker_service_account: str
    ssh_user: str
    ssh_private_key: str
    staging: bool
    owner: str | None
    connection: str

    @property
    def region(self) -> str:
        return self.zone.rpartition("-")[0]

    @property
    def registry(self) -> str:
        """The host of the registry that has the image."""
        return self.full_image.partition("/")[0]

    @property
    def full_image(self) -> str:
        """The image with registry and tag; one that names no registry is in the project's, in the cluster's region."""
        own = f"{self.region}-docker.pkg.dev/{self.project}/{self.repository}/{self.image}"
        return f"{self.image if '/' in self.image else own}:{self.tag}"

    @property
    def state_disk(self) -> str:
        """The disk that outlives the head: what Ray's GCS knows, and Ray's sessions with the logs of jobs."""
        return state_disk_of(self.name)

    def not_for(self, whose: str) -> str:
        """That work of ``whose`` is refused, in a sentence."""
        return f"Cluster {self.name} takes only jobs of {self.owner}, as the fleet file says, and this is {whose}'s."

    @property
    def connection_extra(self) -> dict[str, Any]:
        """The extras of its Airflow connection."""
        return {
            "fleet_cluster": self.name,
            "region": self.region,
            "bucket": self.bucket,
            "slice_types": [pool.kind.name for pool in self.pools],
            "token_secret": f"projects/{self.project}/secrets/{self.token_secret}",
        }


@dataclass(frozen=True)
class Fleet:
    """All clusters of one file, by name."""

    file: Path
    clusters: Mapping[str, FleetCluster]
    default_cluster: str

    def cluster(self, name: str | None = None) -> FleetCluster:
        """The cluster called ``name``, else the default one.

        Raises:
            UnknownClusterError: There is none; it names the nearest.
        """
        try:
            return self.clusters[name or self.default_cluster]
        except KeyError:
            near = meant(str(name), self.clusters)
            raise UnknownClusterError(f"{self.file} describes no cluster {name!r}: {near}") from None

    def called(self, name: str) -> FleetCluster | None:
        """The cluster with this name, else the one whose connection has it. A file in which both are is refused."""
        by_connection = {cluster.connection: cluster for cluster in self.clusters.values()}
        return self.clusters.get(name) or by_connection.get(name)

    def names(self) -> list[str]:
        """What ``called`` knows."""
        return sorted({*self.clusters, *(cluster.connection for cluster in self.clusters.values())})

    def bucket_regions(self) -> dict[str, str]:
        """Bucket → region; without those that clusters of several regions share, which could be in either."""
        regions: dict[str, set[str]] = {}
        for cluster in self.clusters.values():
            regions.setdefault(cluster.bucket, set()).add(cluster.region)
        return {bucket: min(found) for bucket, found in regions.items() if len(found) == 1}


def state_disk_of(cluster: str) -> str:
    """The name of the state disk of the cluster of this name."""
    return f"ray-{cluster}-state"
