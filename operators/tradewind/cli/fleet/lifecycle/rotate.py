"""``tradewind cluster rotate-token``: a new token for clusters, which is a restart of all that share it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence

from tradewind.cli.fleet.connections import renew_connections
from tradewind.cli.fleet.lifecycle.commands import acts_of, jobs_to_preserve, look_for_image, wait_until_ready
from tradewind.cli.fleet.lifecycle.consent import agree, tell_of_jobs
from tradewind.cli.fleet.lifecycle.jobs import tell_of_lost
from tradewind.cli.output import say
from tradewind.fleet.access.kept_token import fetched_token
from tradewind.fleet.cloud.token_secret import TokenSecret, sharing
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.lifecycle.acts import ClusterActs
from tradewind.fleet.lifecycle.rotation import TokenRotation
from tradewind.fleet.marker import ClusterMarker
from tradewind.ray_jobs.keeping.returning import JobReturn


def rotate_token(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Rotate the tokens of the clusters that are named, and of those that share them, when that was agreed to.

    Raises:
        FleetError: A rotation cannot be begun, or not be finished; run again, it goes on.
    """
    named = [fleet.cluster(name) for name in arguments.name or [None]]
    groups = {(one.project, one.token_secret): sharing(fleet, one) for one in named}
    acts = {one.name: acts_of(one, fleet) for group in groups.values() for one in group}
    running = [one for group in groups.values() for one in group if acts[one.name].inventory().heads]
    _tell_what_follows(groups.values(), running, acts)
    if arguments.dry_run:
        return 0
    names = ", ".join(one.name for one in running)
    agree(arguments, f"Rotate the token, and restart {names}?" if running else "Rotate the token?")
    found = [one for group in groups.values() for one in _rotate(arguments, group, acts)]
    for one in running:
        wait_until_ready(arguments, one)
    return tell_of_lost(found)


def _tell_what_follows(
    groups: Iterable[Sequence[FleetCluster]], running: Sequence[FleetCluster], acts: Mapping[str, ClusterActs]
) -> None:
    for group in groups:
        secret = f"projects/{group[0].project}/secrets/{group[0].token_secret}"
        say(f"{secret} is the token of {', '.join(one.name for one in group)}.")
    for one in running:
        look_for_image(one)
        tell_of_jobs(one, acts[one.name].inventory())


def _rotate(
    arguments: argparse.Namespace, group: Sequence[FleetCluster], acts: Mapping[str, ClusterActs]
) -> list[JobReturn]:
    def hand_out(version: int) -> None:
        fetched_token(group[0], str(version))
        renew_connections(group)

    return TokenRotation(
        group,
        TokenSecret(group[0].project, group[0].token_secret),
        acts=acts,
        markers={one.name: ClusterMarker.of(one) for one in group},
        jobs={one.name: jobs_to_preserve(arguments, one) for one in group},
        hand_out=hand_out,
        tell=say,
    ).run()
