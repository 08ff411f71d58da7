"""A cluster of the fleet file put together with all that acts on it: its file, its zone, its marker, Ray's launcher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.configs.generated import CLUSTERS_FOLDER, GeneratedFiles
from tradewind.fleet.errors import FleetError
from tradewind.fleet.lifecycle.acts import ClusterActs
from tradewind.fleet.lifecycle.inventory import CONFIG_LABEL
from tradewind.fleet.lifecycle.launcher import RayLauncher
from tradewind.fleet.lifecycle.zone import CloudZone
from tradewind.fleet.marker import ClusterMarker


def cluster_file(cluster: FleetCluster, fleet: Fleet) -> Path:
    """The cluster's file for Ray's launcher."""
    return fleet.file.parent / CLUSTERS_FOLDER / f"{cluster.name}.yaml"


def config_hash(cluster: FleetCluster, fleet: Fleet, *, must_be_fresh: bool = True) -> str:
    """The hash in the cluster's file.

    Raises:
        FleetError: The file is not as the fleet file has it.
    """
    import yaml  # type: ignore[import-untyped]

    file, files = cluster_file(cluster, fleet), GeneratedFiles.of(fleet)
    if must_be_fresh and file in files.stale:
        raise FleetError(f"{file} is not as {fleet.file} has it: run 'tradewind cluster update-configs' first.")
    return str(yaml.safe_load(files.texts[file])["provider"]["labels"][CONFIG_LABEL])


def acts_on(
    cluster: FleetCluster,
    fleet: Fleet,
    tell: Callable[[str], None],
    echo: Callable[[str], None],
    *,
    must_be_fresh: bool = True,
) -> ClusterActs:
    """What can be done to a cluster of the fleet.

    Args:
        tell: Given a sentence for each thing that is done.
        echo: Given each line that Ray's launcher prints.

    Raises:
        FleetError: Its file is not as the fleet file has it, or Google Cloud cannot be asked.
    """
    return ClusterActs(
        cluster,
        config_hash(cluster, fleet, must_be_fresh=must_be_fresh),
        zone=CloudZone(cluster.project, cluster.zone),
        marker=ClusterMarker.of(cluster),
        launcher=RayLauncher(cluster_file(cluster, fleet), echo),
        tell=tell,
    )
