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
    """One generation, and what clusters offer of it.

    Attributes:
        name: As the fleet file has it.
        runtime_version: The image of its TPU VMs.
        smallest: The smallest slice type that is offered, which a cluster's workers are unless it says otherwise.
        largest: The largest that is offered.
    """

    name: str
    runtime_version: str
    smallest: str
    largest: str

    @cached_property
    def offered(self) -> tuple[SliceType, ...]:
        """The slice types that clusters of this generation have, the smallest first."""
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
"""What Ray's autoscaler calls the label of its nodes that names their cluster."""
BASE_NODE_TYPE = "tpu_worker"
"""What the autoscaler calls slices of a cluster's base type, whichever that is."""


class Capacity(StrEnum):
    """Kind of capacity of slices; the names are the fleet file's."""

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
            near = nearest_names_hint(str(name), self.clusters)
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


# Google Cloud's zones, as its list of them was at the end of 2025: to notice a typo, never to refuse a zone.
#
# Google adds regions several times a year, so that a zone is not known here says only that it should be looked at.

_LETTERS: Final = {
    "us-central1": "abcf", "us-central2": "abcd", "us-east1": "bcd", "europe-west1": "bcd",
}  # fmt: skip
"""Of the regions whose zones are not a, b and c."""
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
    """A sentence for each cluster in a zone that is not known here, with the nearest of those that are."""
    for cluster in clusters:
        if cluster.zone not in ZONES:
            near = get_close_matches(cluster.zone, ZONES, n=2)
            hint = f": did you mean {' or '.join(near)}?" if near else "."
            yield (
                f"Cluster {cluster.name}, zone: {cluster.zone} is no zone of Google Cloud that is known here{hint} "
                "If it is a new one, there is nothing to do."
            )
