"""``tradewind cluster push-env``: the environment of a cluster is brought to its hosts while Ray runs."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence

from tradewind.cli.errors import CommandError
from tradewind.cli.fleet.access.options import HEAD_WORD
from tradewind.cli.output import json_lines, say, write_lines
from tradewind.fleet.access.hosts import ClusterHosts, SliceHost, SliceOfHosts
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.environment.push import EnvironmentPush, HostPush, PushState, machines_of, newest_versions
from tradewind.fleet.marker import ClusterMarker
from tradewind.fleet.marker_value import PUSH_ENV
from tradewind.text_table import aligned

_HEAD_ROW = ("HOST", "FILES", "CHANGED", "REMOVED", "RAY HAS OTHERS")


def push_env(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Write the files on the head and on hosts of slices; 1 if one of them does not have them afterwards.

    Raises:
        NoVersionError: A secret has nothing that could be written. Nothing was done.
        ClusterBusyError: Somebody else is changing the cluster. Nothing was done.
        FleetError: Google Cloud does not say where the hosts are, or there is no such host.
    """
    cluster = fleet.cluster(arguments.name)
    if arguments.dry_run:
        return _pushed(arguments, cluster, lambda: None)
    with ClusterMarker.of(cluster).take(PUSH_ENV, "writing files") as held:
        code = _pushed(arguments, cluster, held.check)
        held.finish()
    return code


def _pushed(arguments: argparse.Namespace, cluster: FleetCluster, check: Callable[[], None]) -> int:
    """The newest versions are asked for by who holds the cluster, so that who comes later writes no older ones."""
    versions = newest_versions(cluster)
    there = ClusterHosts(cluster)
    names = arguments.host
    slices = _named(there, names) if names else there.slices()
    head = [there.head()] if not names or HEAD_WORD in names else []
    hosts, lost = machines_of(there, [one for one in slices if one.hosts])
    if not (hosts or lost or head):
        raise CommandError(f"Cluster {cluster.name} has no host to write to.")
    if not arguments.json:
        for name, version in versions.items():
            say(f"{name} is {version}.")
    done = [*EnvironmentPush(versions).push([*head, *hosts], is_dry=arguments.dry_run, check=check), *lost]
    absent = [one for one in slices if not one.hosts]
    if arguments.json:
        left_out = [{"slice": one.name, "state": one.state} for one in absent]
        fields = {"cluster": cluster.name, "versions": versions, "hosts": [one.to_json() for one in done]}
        write_lines(json_lines({**fields, "left_out": left_out}))
    else:
        _tell(cluster, done, absent, is_dry=arguments.dry_run)
    return 1 if any(one.state.is_bad for one in done) else 0


def _named(there: ClusterHosts, names: Sequence[str]) -> list[SliceOfHosts]:
    """The hosts that are named, by their slices."""
    by_slice: dict[str, list[SliceHost]] = {}
    for host in there.named([name for name in names if name != HEAD_WORD]):
        by_slice.setdefault(host.slice_name, []).append(host)
    return [SliceOfHosts(name, "READY", tuple(hosts)) for name, hosts in by_slice.items()]


def _tell(cluster: FleetCluster, done: Sequence[HostPush], absent: Sequence[SliceOfHosts], *, is_dry: bool) -> None:
    rows = [(one.host, one.state, *map(", ".join, (one.changed, one.removed, one.restart))) for one in done]
    write_lines(aligned([_HEAD_ROW, *rows]))
    for one in absent:
        say(f"Slice {one.name} of {cluster.name} is {one.state} and left out: it fetches them when it starts.")
    for failed in (one for one in done if one.state.is_bad):
        say(f"{failed.host}: {failed.why.rstrip('.')}.")
    counts = Counter(one.state for one in done)
    told = ", ".join(f"{count} {state}" for state, count in counts.items())
    say(f"Of {len(done)} hosts: {told}." + (" Nothing was written." if is_dry else ""))
    if counts[PushState.FAILED]:
        say("Mend those, and run it again: it does what is left.")
    changed = sorted({name for one in done for name in (*one.changed, *one.removed)})
    if changed and not is_dry:
        say(f"At once: jobs that are started from now on and name a secret env:{changed[0]} get the new value.")
    if stale := sorted({name for one in done for name in one.restart}):
        hosts = sum(1 for one in done if one.restart)
        say(
            f"Later: Ray on {hosts} {'host' if hosts == 1 else 'hosts'} was started with another {', '.join(stale)}, "
            "and so were the processes of its jobs. They see the new one when Ray is started anew there: "
            f"'tradewind cluster restart {cluster.name}', or once the host is replaced."
        )
