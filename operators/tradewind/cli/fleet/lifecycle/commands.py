"""``tradewind cluster start``, ``stop``, ``restart`` and ``apply``."""

from __future__ import annotations

import argparse
import sys
import time

from tradewind.cli.errors import UsageError
from tradewind.cli.fleet.lifecycle.consent import agree, tell_of_jobs
from tradewind.cli.fleet.lifecycle.jobs import tell_of_lost
from tradewind.cli.output import as_line, json_lines, say, write_lines
from tradewind.fleet.cloud.google_api import CloudError, google_api
from tradewind.fleet.cloud.needed_secrets import check_secrets
from tradewind.fleet.cloud.registry import check_image
from tradewind.fleet.clusters import Fleet, FleetCluster, state_disk_of
from tradewind.fleet.lifecycle.acts import ClusterActs, delete_nodes
from tradewind.fleet.lifecycle.inventory import Inventory
from tradewind.fleet.lifecycle.kept_jobs import KeptJobs
from tradewind.fleet.lifecycle.of_fleet import acts_on, cluster_file
from tradewind.fleet.lifecycle.preserving.kept_note import BadNoteError, interruption
from tradewind.fleet.lifecycle.preserving.own_backups import tidy_backups
from tradewind.fleet.lifecycle.preserving.preserved_jobs import PreservedJobs
from tradewind.fleet.lifecycle.readiness import Readiness
from tradewind.fleet.lifecycle.restart import ClusterRestart
from tradewind.fleet.lifecycle.teardown import Teardown
from tradewind.fleet.lifecycle.zone import CloudZone
from tradewind.fleet.marker import ClusterMarker
from tradewind.text_table import aligned


def start(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Start a cluster, and wait for it.

    Raises:
        FleetError: It cannot be started, or is not ready in time.
    """
    cluster = fleet.cluster(arguments.name)
    acts = acts_of(cluster, fleet)
    look_for_image(cluster)
    _look_for_secrets(cluster)
    if arguments.dry_run:
        found = acts.inventory()
        say(f"Cluster {cluster.name}: {found.state.value}. 'start' would run: ray up {cluster_file(cluster, fleet)}")
        return 0
    acts.start()
    return wait_until_ready(arguments, cluster)


def restart(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """End Ray on a cluster's head and start it again, when that was agreed to. Raises the same."""
    cluster = fleet.cluster(arguments.name)
    acts = acts_of(cluster, fleet)
    look_for_image(cluster)
    _look_for_secrets(cluster)
    found = acts.inventory()
    tell_of_jobs(cluster, found)
    if arguments.dry_run:
        say(f"Cluster {cluster.name}: {found.state.value}. 'restart' would run: ray up {cluster_file(cluster, fleet)}")
        return 0
    agree(arguments, f"Restart cluster {cluster.name}?")
    jobs = jobs_to_preserve(arguments, cluster)
    lost = tell_of_lost(ClusterRestart(acts, ClusterMarker.of(cluster), jobs, say).run())
    return max(lost, wait_until_ready(arguments, cluster))


def apply(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Have a cluster follow its file. Raises the same.

    Raises:
        UsageError: JSON is asked for, and it is not a dry run.
    """
    if arguments.json and not arguments.dry_run:
        raise UsageError("--json goes with --dry-run: it has what would be done. Nothing was done.")
    acts = acts_of(fleet.cluster(arguments.name), fleet)
    plan = acts.plan_apply()
    if arguments.json:
        write_lines(json_lines(plan.to_json()))
    plan.check()
    if arguments.dry_run or plan.is_current:
        say(plan.sentence)
    else:
        acts.apply()
    return 0


def stop(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Delete what there is of a cluster, when that was agreed to. Raises the same."""
    if arguments.project or arguments.zone:
        return _stop_removed(arguments, fleet)
    cluster = fleet.cluster(arguments.name)
    acts = acts_of(cluster, fleet, must_be_fresh=False)
    found = acts.inventory()
    is_something = _list_teardown(arguments, cluster.name, found, cluster.state_disk)
    tell_of_jobs(cluster, found)
    _tell_of_kept(cluster)
    if arguments.dry_run:
        return 0
    if is_something:
        agree(arguments, f"Delete all of that in {cluster.project}, {cluster.zone}?")
    acts.stop(include_reserved=arguments.include_reserved, delete_state=arguments.delete_state)
    say(f"Cluster {cluster.name} is stopped.")
    return 0


def _stop_removed(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """The same for a cluster that the fleet file has no more, so that nobody can hold its marker."""
    name, place = arguments.name, (arguments.project, arguments.zone)
    if not (name and all(place)):
        raise UsageError("Of a cluster that the fleet file has no more, name the cluster, --project and --zone.")
    if name in fleet.clusters:
        raise UsageError(f"{fleet.file} has a cluster {name}: leave --project and --zone out.")
    zone = CloudZone(*place)
    is_something = _list_teardown(arguments, name, zone.inventory().of(name), state_disk_of(name))
    if arguments.dry_run or not is_something:
        return 0
    agree(arguments, f"Delete all of that in {zone}?")
    delete_nodes(zone, name, say, include_reserved=arguments.include_reserved)
    if arguments.delete_state:
        zone.delete_disk(state_disk_of(name))
    say(f"Cluster {name} is stopped.")
    return 0


def _tell_of_kept(cluster: FleetCluster) -> None:
    """Say whose jobs an interrupted restart has kept, which nobody brings back by himself after a stop."""
    found = ClusterMarker.of(cluster).read()
    tidy_backups(cluster.name, KeptJobs(cluster, say), found, say)
    try:
        sentences = interruption(found, cluster.name, time.time())
    except BadNoteError as error:  # a stop is the way out of that
        sentences = str(error)
    if sentences:
        say(sentences)


def _list_teardown(arguments: argparse.Namespace, name: str, found: Inventory, disk: str) -> bool:
    """Print what a stop deletes and keeps; whether it deletes anything."""
    plan = Teardown.of(found, include_reserved=arguments.include_reserved)
    lines = [*plan.lines()]
    if arguments.delete_state:
        lines.append(("delete", "disk", disk, "Ray's state and the logs of jobs"))
    is_something = any(line[0] == "delete" for line in lines)
    if not is_something:
        say(f"Cluster {name}: there is nothing to delete.")
    write_lines(aligned(lines) if lines else [])
    if plan.kept_slices or plan.kept_queues:
        say("What is reserved, or of a queued resource, is kept: --include-reserved deletes it too.")
    return is_something


def acts_of(cluster: FleetCluster, fleet: Fleet, *, must_be_fresh: bool = True) -> ClusterActs:
    """What can be done to a cluster of the fleet, told to the person at the command line.

    Raises:
        FleetError: Its file is not as the fleet file has it, or Google Cloud cannot be asked.
    """
    return acts_on(cluster, fleet, say, _echo, must_be_fresh=must_be_fresh)


def jobs_to_preserve(arguments: argparse.Namespace, cluster: FleetCluster) -> PreservedJobs:
    """The jobs of people on a cluster that is to be restarted, as the options have it."""
    return PreservedJobs(
        cluster,
        KeptJobs(cluster, say),
        say,
        is_to_keep=arguments.preserve_jobs,
        may_abandon=arguments.abandon_kept_jobs,
    )


def wait_until_ready(arguments: argparse.Namespace, cluster: FleetCluster) -> int:
    """Wait for a cluster if that is asked for. Raises ``NotReadyError``."""
    if arguments.wait:
        Readiness(say).wait(cluster, arguments.timeout)
        say(f"Cluster {cluster.name} is ready.")
    else:
        say(f"Cluster {cluster.name} is being started: 'tradewind cluster status {cluster.name}' shows how far it is.")
    return 0


def look_for_image(cluster: FleetCluster) -> None:
    """See that the cluster's image is there, or say that it is not known. Raises ``FleetError`` if it is not."""
    try:
        check_image(cluster, google_api("artifactregistry"))
    except CloudError as error:
        say(f"Whether its image is there is not known: {error}")


def _look_for_secrets(cluster: FleetCluster) -> None:
    """The same for its token and its variables, without which its head would be made, and never set up."""
    try:
        check_secrets(cluster, google_api("secretmanager"))
    except CloudError as error:
        say(f"Whether its secrets are there is not known: {error}")


def _echo(line: str) -> None:
    print(as_line(line), file=sys.stderr, flush=True)
