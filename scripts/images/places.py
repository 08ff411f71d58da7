"""Our images, and the repositories from which the fleet's clusters pull them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.errors import FleetError, nearest_names_hint

REGISTRY: Final = "{region}-docker.pkg.dev/{project}"
"""Artifact Registry has one registry in each region."""


@dataclass(frozen=True)
class Image:
    """An image that we build.

    Attributes:
        name: As the fleet file has it.
        is_of_clusters: Whether clusters name it, and so determine its repositories.
    """

    name: str
    dockerfile: str
    build_arguments: Mapping[str, str] = field(default_factory=dict)
    is_of_clusters: bool = True


IMAGES: Final = {
    "cluster": Image("tradewind_cluster", "docker/Dockerfile.cluster", {"CHIPS": "tpu"}),
    "cuda": Image("tradewind_cluster_cuda", "docker/Dockerfile.cluster", {"CHIPS": "cuda"}),
    "staging": Image("tradewind_cluster_test", "docker/Dockerfile.cluster", {"CHIPS": "tpu"}),
    "vllm": Image("tradewind_vllm", "docker/Dockerfile.vllm"),
    "airflow": Image("tradewind_airflow", "docker/Dockerfile.airflow", is_of_clusters=False),
}


@dataclass(frozen=True, order=True)
class Repository:
    """A repository of a registry, which must exist before a push."""

    region: str
    project: str
    name: str

    def reference(self, registry: str, image: str, tag: str) -> str:
        """Return the argument of ``docker push``."""
        host = registry.format(region=self.region, project=self.project)
        return f"{host}/{self.name}/{image}:{tag}"


def users(fleet: Fleet, image: Image, regions: Collection[str]) -> list[FleetCluster]:
    """Return the clusters in these regions (none: in all) that run the image.

    Raises:
        FleetError: A region has no such cluster, so a push there has no use.
    """
    clusters = [cluster for cluster in fleet.clusters.values() if cluster.image == image.name]
    known = sorted({cluster.region for cluster in clusters})
    for region in regions:
        if region not in known:
            raise FleetError(
                f"In {region} no cluster of {fleet.file} runs {image.name}: {nearest_names_hint(region, known)}"
            )
    return [cluster for cluster in clusters if not regions or cluster.region in regions]


def repositories(fleet: Fleet, image: Image, regions: Collection[str], name: str | None = None) -> list[Repository]:
    """Return the repositories for the image: those of its clusters, or else that beside the default cluster's.

    Args:
        name: Only repositories of this name.

    Raises:
        FleetError: There is none.
    """
    if image.is_of_clusters:
        chosen = users(fleet, image, regions)
        found = {Repository(cluster.region, cluster.project, cluster.repository) for cluster in chosen}
    else:
        default = fleet.cluster()
        places = regions or (default.region,)
        found = {Repository(region, default.project, name or default.repository) for region in places}
    chosen = sorted(repository for repository in found if name in (None, repository.name))
    if not chosen:
        raise FleetError(
            f"No cluster of {fleet.file} pulls {image.name}" + (f" from a repository {name}." if name else ".")
        )
    return chosen
