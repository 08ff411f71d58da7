"""The fleet as values: clusters, TPU generations, slice pools and known zones.

Generations have the fleet file's names: Google's accelerator types call v5e ``v5litepod``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tradewind.cloud_tpu.slice_types import SLICE_TYPES, SliceType, slice_type
from tradewind.fleet.errors import UnknownClusterError, nearest_names_hint


@dataclass(frozen=True)
class TpuGeneration:
    """One generation, and the slice types that clusters offer of it.

    Attributes:
        name: Its name in the fleet file.
        runtime_version: The image of its TPU VMs.
        smallest: The smallest offered slice type, a cluster's default base type.
        largest: The largest offered slice type.
    """

    name: str
    runtime_version: str
    smallest: str
    largest: str

    @cached_property
    def offered(self) -> tuple[SliceType, ...]:
        """Slice types of clusters of this generation, the smallest first."""
        least, most = slice_type(self.smallest), slice_type(self.largest)
        of_family = (known for known in SLICE_TYPES.values() if known.generation == least.generation)
        return tuple(known for known in of_family if least.chips <= known.chips <= most.chips)

    def has(self, kind: SliceType) -> bool:
        """Whether ``kind`` is a slice of this generation."""
        return kind.generation == slice_type(self.smallest).generation


GENERATIONS: Final = {
    generation.name: generation
    for generation in (
        TpuGeneration("v4", "tpu-ubuntu2204-base", "v4-8", "v4-4096"),
        TpuGeneration("v5e", "v2-alpha-tpuv5-lite", "v5litepod-4", "v5litepod-256"),
        TpuGeneration("v5p", "v2-alpha-tpuv5", "v5p-8", "v5p-2048"),
        TpuGeneration("v6e", "v2-alpha-tpuv6e", "v6e-4", "v6e-256"),
    )
}

CLUSTER_LABEL = "ray-cluster-name"
"""Label of the autoscaler's nodes that names their cluster."""
BASE_NODE_TYPE = "tpu_worker"
"""The autoscaler's node type of slices of a cluster's base type."""


class Capacity(StrEnum):
    """Kind of capacity of slices; the names are the fleet file's."""

    PREEMPTIBLE = "preemptible"
    """Google may take them at any time, and does so after a day."""
    RESERVED = "reserved"
    """The project has reserved them."""
    BEST_EFFORT = "best_effort"
    """Google may take them at any time; ``spot`` in its API."""

    @property
    def scheduling_field(self) -> str:
        """Field of a node's ``schedulingConfig`` that requests it."""
        return "spot" if self is Capacity.BEST_EFFORT else self.value


@dataclass(frozen=True)
class SlicePool:
    """The slices of one type in a cluster.

    Attributes:
        node_type: Their node type for the autoscaler.
        minimum: Number of slices that stay up.
        maximum: Maximum number of slices.
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
        """Host of the image's registry."""
        return self.full_image.partition("/")[0]

    @property
    def full_image(self) -> str:
        """The image with registry and tag; the default is the project's registry in the cluster's region."""
        own = f"{self.region}-docker.pkg.dev/{self.project}/{self.repository}/{self.image}"
        return f"{self.image if '/' in self.image else own}:{self.tag}"

    @property
    def state_disk(self) -> str:
        """Disk that survives the head, with the data of Ray's GCS, and Ray's sessions with the logs of jobs."""
        return state_disk_of(self.name)

    def not_for(self, whose: str) -> str:
        """Return the sentence that refuses work of the user ``whose``."""
        return f"Cluster {self.name} takes only jobs of {self.owner}, as the fleet file says, and this is {whose}'s."

    @property
    def connection_extra(self) -> dict[str, Any]:
        """Extras of its Airflow connection."""
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
        """Return the cluster called ``name``, or the default one.

        Raises:
            UnknownClusterError: The fleet has no such cluster; the message suggests the nearest names.
        """
        try:
            return self.clusters[name or self.default_cluster]
        except KeyError:
            near = nearest_names_hint(str(name), self.clusters)
            raise UnknownClusterError(f"{self.file} describes no cluster {name!r}: {near}") from None

    def called(self, name: str) -> FleetCluster | None:
        """Return the cluster with this name, else the one whose connection has it. No fleet has both."""
        by_connection = {cluster.connection: cluster for cluster in self.clusters.values()}
        return self.clusters.get(name) or by_connection.get(name)

    def names(self) -> list[str]:
        """Return all names that ``called`` accepts."""
        return sorted({*self.clusters, *(cluster.connection for cluster in self.clusters.values())})

    def bucket_regions(self) -> dict[str, str]:
        """Return bucket → region, without buckets that clusters of several regions share."""
        regions: dict[str, set[str]] = {}
        for cluster in self.clusters.values():
            regions.setdefault(cluster.bucket, set()).add(cluster.region)
        return {bucket: min(found) for bucket, found in regions.items() if len(found) == 1}


def state_disk_of(cluster: str) -> str:
    """Return the name of the state disk of a cluster."""
    return f"ray-{cluster}-state"


# Google Cloud's zones at the end of 2025. They only serve to warn of typos: Google adds regions several times a year.

_LETTERS: Final = {
    "us-central1": "abcf", "us-central2": "abcd", "us-east1": "bcd", "europe-west1": "bcd",
}  # fmt: skip
"""Zones of the regions whose zones are not a, b and c."""
_REGIONS: Final = (
    "africa-south1", "asia-east1", "asia-east2", "asia-northeast1", "asia-northeast2", "asia-northeast3", "asia-south1",
    "asia-south2", "asia-southeast1", "asia-southeast2", "australia-southeast1", "australia-southeast2",
    "europe-central2", "europe-north1", "europe-north2", "europe-southwest1", "europe-west1", "europe-west10",
    "europe-west12", "europe-west2", "europe-west3", "europe-west4", "europe-west6", "europe-west8", "europe-west9",
    "me-central1", "me-central2", "me-west1", "northamerica-northeast1", "northamerica-northeast2",
    "northamerica-south1", "southamerica-east1", "southamerica-west1", "us-central1", "us-central2", "us-east1",
    "us-east4", "us-east5", "us-south1", "us-west1", "us-west2", "us-west3", "us-west4",
)  # fmt: skip
ZONES: Final = (
    *(f"{region}-{letter}" for region in _REGIONS for letter in _LETTERS.get(region, "abc")),
    "us-central1-ai1a", "us-south1-ai1b",
)  # fmt: skip


def unknown_zone_warnings(clusters: Iterable[FleetCluster]) -> Iterator[str]:
    """Yield a sentence for each cluster in an unknown zone, with the nearest known zones."""
    for cluster in clusters:
        if cluster.zone not in ZONES:
            near = get_close_matches(cluster.zone, ZONES, n=2)
            hint = f": did you mean {' or '.join(near)}?" if near else "."
            yield (
                f"Cluster {cluster.name}, zone: {cluster.zone} is no zone of Google Cloud that is known here{hint} "
                "If it is a new one, there is nothing to do."
            )
