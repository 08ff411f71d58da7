"""Which clusters of a fleet file a rehearsal plays, and with which slices."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tradewind.cli.errors import CommandError, UsageError
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.errors import FleetError, meant_file
from tradewind.fleet.file.load import load_fleet
from tradewind.rehearsal.fleet.plan import ClusterPlan, FleetPlan

_MOST_SLICES: Final = 26


def fleet_plan(file: str, names: Sequence[str], wanted: Mapping[str, int]) -> FleetPlan:
    """The plan for these clusters of the fleet; for its default cluster, if none is named.

    Args:
        wanted: Slice type → how many each cluster has at first; empty: the minimum that the fleet file says.

    Raises:
        UsageError: There is no such file or cluster, or one machine cannot rehearse them together.
        CommandError: The file cannot be used.
    """
    if not os.path.isfile(file):  # which is no error, whatever stands there
        raise UsageError(f"--fleet {file}: there is no such file{meant_file(Path(file))}.")
    try:
        fleet = load_fleet(Path(os.path.realpath(file)))
        chosen = [fleet.cluster(name) for name in dict.fromkeys(names)] or [fleet.cluster()]
    except FleetError as error:
        raise CommandError(str(error)) from None
    _check_zones(chosen)
    plans = tuple(_cluster_plan(cluster, wanted) for cluster in chosen)
    count = sum(len(plan.slices) for plan in plans)
    if count > _MOST_SLICES:
        raise UsageError(f"{count} slices are more than one machine can rehearse: give each cluster fewer by --slices.")
    return FleetPlan(str(fleet.file), _default(fleet, plans), plans)


def _check_zones(chosen: Sequence[FleetCluster]) -> None:
    """The Cloud TPU of a zone is rehearsed for one cluster: every slice of it joins that one."""
    first: dict[tuple[str, str], str] = {}
    for cluster in chosen:
        other = first.setdefault((cluster.project, cluster.zone), cluster.name)
        if other != cluster.name:
            raise UsageError(
                f"Clusters {other} and {cluster.name} are both in {cluster.project}, {cluster.zone}: rehearse one of "
                "them at a time."
            )


def _cluster_plan(cluster: FleetCluster, wanted: Mapping[str, int]) -> ClusterPlan:
    known = [pool.kind.name for pool in cluster.pools]
    if unknown := sorted(wanted.keys() - set(known)):
        raise UsageError(f"--slices: cluster {cluster.name} has no {unknown[0]}; it has {', '.join(known)}.")
    counts = wanted or {pool.kind.name: pool.minimum for pool in cluster.pools}
    types = [kind for kind, count in counts.items() for _ in range(count)]
    return ClusterPlan(
        cluster.name,
        cluster.project,
        cluster.zone,
        cluster.bucket,
        cluster.connection,
        cluster.token_secret,
        {f"{cluster.name}-{number}": kind for number, kind in enumerate(types)},
        {key: value for key, value in cluster.connection_extra.items() if key != "token_secret"},
    )


def _default(fleet: Fleet, plans: Sequence[ClusterPlan]) -> str:
    names = [plan.name for plan in plans]
    return fleet.default_cluster if fleet.default_cluster in names else names[0]
