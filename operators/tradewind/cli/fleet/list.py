"""``tradewind cluster list``: the clusters as the fleet file describes them; nobody is asked how they are."""

from __future__ import annotations

import argparse
from typing import Any

from tradewind.cli.fleet.fleet_file import say_doubts
from tradewind.cli.output import json_lines, write_lines
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.text_table import aligned

_HEAD = ("CLUSTER", "ZONE", "GENERATION", "SLICES", "BUCKET", "TAG", "CONNECTION", "STAGING")
_DEFAULT = "*"


def list_clusters(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Print the clusters that are asked for, in the order of the file; the default one has a star."""
    chosen = [fleet.cluster(name) for name in arguments.name] or list(fleet.clusters.values())
    say_doubts(chosen)
    if arguments.json:
        write_lines(json_lines([cluster_json(cluster, fleet) for cluster in chosen]))
    else:
        write_lines(clusters_table(chosen, fleet))
    return 0


def cluster_json(cluster: FleetCluster, fleet: Fleet) -> dict[str, Any]:
    """What programs are told of a cluster. Of secrets there are only names here, and those stay in the file."""
    return {
        "name": cluster.name,
        "is_default": cluster.name == fleet.default_cluster,
        "project": cluster.project,
        "zone": cluster.zone,
        "region": cluster.region,
        "generation": cluster.generation.name,
        "slices": [
            {"type": pool.kind.name, "node_type": pool.node_type, "min": pool.minimum, "max": pool.maximum}
            for pool in cluster.pools
        ],
        "bucket": cluster.bucket,
        "image": cluster.full_image,
        "capacity": cluster.capacity.value,
        "connection": cluster.connection,
        "staging": cluster.staging,
        "owner": cluster.owner,
    }


def clusters_table(clusters: list[FleetCluster], fleet: Fleet) -> list[str]:
    """The clusters in columns under a head."""
    return aligned([_HEAD, *(_row(cluster, fleet) for cluster in clusters)])


def _row(cluster: FleetCluster, fleet: Fleet) -> tuple[str, ...]:
    return (
        f"{cluster.name}{_DEFAULT if cluster.name == fleet.default_cluster else ''}",
        cluster.zone,
        cluster.generation.name,
        _slices(cluster),
        cluster.bucket,
        cluster.tag,
        cluster.connection,
        "yes" if cluster.staging else "no",
    )


def _slices(cluster: FleetCluster) -> str:
    """The base type and every type that stays up, with their limits; of the others only how many there are."""
    base, *others = cluster.pools
    named = [base, *(pool for pool in others if pool.minimum)]
    texts = [f"{pool.kind.name} {pool.minimum}..{pool.maximum}" for pool in named]
    rest = len(cluster.pools) - len(named)
    return ", ".join([*texts, *([f"{rest} more"] if rest else [])])
