"""Commands that start, stop and change clusters.

``start``, ``stop``, ``restart`` and ``apply`` act on a cluster; ``add-worker``, ``remove-worker``, ``resize`` and
``repair`` on its slices. ``backup-jobs`` and ``restore-jobs`` save and restore unmanaged jobs by hand, as a restart
does. Before a command ends running jobs, it prints whose they are and asks the user.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import uuid
from collections.abc import Iterable, Sequence

from tradewind.cli.output import CommandError, UsageError, as_line, json_lines, say, write_lines
from tradewind.cloud_tpu.api import TpuApi
from tradewind.cloud_tpu.repair.passes import SliceRepair
from tradewind.cloud_tpu.repair.records import RepairLock, SliceRecordError
from tradewind.cloud_tpu.repair.terms import Scope
from tradewind.cloud_tpu.slice_types import SliceType, UnknownSliceTypeError
from tradewind.deployment.slice_repair import LOCK_FILE
from tradewind.fleet.access.connect import connected, connected_with_any_token
from tradewind.fleet.cloud.google_api import CloudError, google_api
from tradewind.fleet.cloud.heads import NoHeadError, SeveralHeadsError, find_head
from tradewind.fleet.cloud.registry import check_image
from tradewind.fleet.cloud.token_secret import check_secrets
from tradewind.fleet.clusters import CLUSTER_LABEL, Capacity, Fleet, FleetCluster, state_disk_of
from tradewind.fleet.errors import FleetError
from tradewind.fleet.lifecycle.cluster_manager import (
    ClusterManager,
    Teardown,
    cluster_file,
    cluster_manager,
    config_hash,
    delete_nodes,
)
from tradewind.fleet.lifecycle.inventory import CloudZone, Inventory, translated_tpu_errors
from tradewind.fleet.lifecycle.job_preservation import (
    BadBackupNoteError,
    ClusterJobBackup,
    JobPreservation,
    interruption,
    prune_backups,
)
from tradewind.fleet.lifecycle.restart import ClusterRestart, Readiness
from tradewind.fleet.lock import ADD_WORKER, REMOVE_WORKER, ClusterLock
from tradewind.fleet.upkeep import LockNote
from tradewind.fleet.workers.join import start_script
from tradewind.fleet.workers.manual_slices import ManualSlices, slice_records
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import owner_of
from tradewind.ray_jobs.errors import RayJobsError
from tradewind.ray_jobs.job_backup import JobBackup
from tradewind.ray_jobs.job_restore import RestoreResult
from tradewind.ray_jobs.nodes import NodeInfo, fetch_nodes, hosts_alive
from tradewind.text import format_columns

_ID_LENGTH = 8


def show_affected_jobs(cluster: FleetCluster, found: Inventory) -> None:
    """Print whose jobs run on the cluster, or that it does not answer."""
    from tradewind.ray_jobs.client import RayJobs

    if not found.heads:
        return
    try:
        with connected_with_any_token(cluster) as connection:
            jobs = [job for job in RayJobs(connection).jobs() if not job.has_ended]
    except (FleetError, RayJobsError) as error:
        say(f"Cannot list the jobs of cluster {cluster.name}: {error}")
        return
    if not jobs:
        say(f"No job runs on cluster {cluster.name}.")
        return
    say(f"{len(jobs)} {'job runs' if len(jobs) == 1 else 'jobs run'} on cluster {cluster.name}:")
    write_lines(format_columns([(job.job, job.status, owner_of(job.metadata)) for job in jobs]))


def agree(arguments: argparse.Namespace, question: str) -> None:
    """Return if the user agrees, or has agreed by an option.

    Raises:
        UsageError: There is no terminal to ask the user.
        CommandError: The user does not agree.
    """
    if arguments.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("There is no terminal to confirm on: give --yes to go ahead. Nothing was done.")
    print(f"tradewind: {as_line(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("Nothing was done.")


def backup_jobs(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Back up the unmanaged jobs of a cluster, and print the backup's id.

    Raises:
        FleetError: The jobs cannot be saved.
    """
    saved = ClusterJobBackup(fleet.cluster(arguments.name), say).back_up(uuid.uuid4().hex[:_ID_LENGTH])
    write_lines([saved.backup.restart])
    return 0


def restore_jobs(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Restore saved jobs that no longer run on the cluster.

    Raises:
        UsageError: No backup is named, and it is not clear which to use.
        CommandError: There is no backup.
        FleetError: The jobs cannot be restored yet.
    """
    backup = ClusterJobBackup(fleet.cluster(arguments.name), say)
    return report_lost_jobs(backup.restore(_chosen(backup.backups(), arguments.backup, backup)))


def report_lost_jobs(found: Iterable[RestoreResult]) -> int:
    """Report the jobs whose restore failed; return the exit code."""
    lost = [one for one in found if one.is_lost]
    if lost:
        say(f"Not restored: {', '.join(one.job for one in lost)}.")
    if any(one.is_retryable for one in lost):
        say("The backup still has the jobs that may be restored: 'tradewind cluster restore-jobs' retries.")
    return 1 if lost else 0


def _chosen(backups: Sequence[JobBackup], wanted: str | None, backup: ClusterJobBackup) -> JobBackup:
    names = ", ".join(one.restart for one in backups)
    if not backups:
        raise CommandError(f"There is no backup of jobs in {backup.folder}.")
    if wanted is None and len(backups) > 1:
        raise UsageError(f"There are several backups in {backup.folder}: choose one with --backup: {names}.")
    for one in backups:
        if wanted in (None, one.restart):
            return one
    raise UsageError(f"There is no backup {wanted} in {backup.folder}, only {names}.")


def start(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Start a cluster, and wait for it.

    Raises:
        FleetError: It cannot be started, or is not ready in time.
    """
    cluster = fleet.cluster(arguments.name)
    manager = manager_of(cluster, fleet)
    look_for_image(cluster)
    _look_for_secrets(cluster)
    if arguments.dry_run:
        found = manager.inventory()
        say(f"Cluster {cluster.name}: {found.state.value}. 'start' would run: ray up {cluster_file(cluster, fleet)}")
        return 0
    manager.start()
    return wait_until_ready(arguments, cluster)


def restart(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Restart Ray on a cluster's head, once the user agrees. Raises the same."""
    cluster = fleet.cluster(arguments.name)
    manager = manager_of(cluster, fleet)
    look_for_image(cluster)
    _look_for_secrets(cluster)
    found = manager.inventory()
    show_affected_jobs(cluster, found)
    if arguments.dry_run:
        say(f"Cluster {cluster.name}: {found.state.value}. 'restart' would run: ray up {cluster_file(cluster, fleet)}")
        return 0
    agree(arguments, f"Restart cluster {cluster.name}?")
    jobs = jobs_to_preserve(arguments, cluster)
    lost = report_lost_jobs(ClusterRestart(manager, ClusterLock.of(cluster), jobs, say).run())
    return max(lost, wait_until_ready(arguments, cluster))


def apply(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Make a cluster match its file. Raises the same, and

    Raises:
        UsageError: ``--json`` is given without ``--dry-run``.
    """
    if arguments.json and not arguments.dry_run:
        raise UsageError("--json needs --dry-run: it prints what would be done. Nothing was done.")
    manager = manager_of(fleet.cluster(arguments.name), fleet)
    plan = manager.plan_apply()
    if arguments.json:
        write_lines(json_lines(plan.to_json()))
    plan.check()
    if arguments.dry_run or plan.is_current:
        say(plan.sentence)
    else:
        manager.apply()
    return 0


def stop(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Delete the resources of a cluster, once the user agrees. Raises the same."""
    if arguments.project or arguments.zone:
        return _stop_removed(arguments, fleet)
    cluster = fleet.cluster(arguments.name)
    manager = manager_of(cluster, fleet, must_be_fresh=False)
    found = manager.inventory()
    is_something = _list_teardown(arguments, cluster.name, found, cluster.state_disk)
    show_affected_jobs(cluster, found)
    _report_interruption(cluster)
    if arguments.dry_run:
        return 0
    if is_something:
        agree(arguments, f"Delete all of that in {cluster.project}, {cluster.zone}?")
    manager.stop(include_reserved=arguments.include_reserved, delete_state=arguments.delete_state)
    say(f"Cluster {cluster.name} is stopped.")
    return 0


def _stop_removed(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Do the same for a cluster no longer in the fleet file, without its cluster lock."""
    name, place = arguments.name, (arguments.project, arguments.zone)
    if not (name and all(place)):
        raise UsageError("To stop a cluster that is no longer in the fleet file, give its name, --project and --zone.")
    if name in fleet.clusters:
        raise UsageError(f"{fleet.file} has a cluster {name}: leave out --project and --zone.")
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


def _report_interruption(cluster: FleetCluster) -> None:
    """Print whose jobs an interrupted restart has saved: after a stop, a user must restore them."""
    found = ClusterLock.of(cluster).read()
    prune_backups(cluster.name, ClusterJobBackup(cluster, say), found, say)
    try:
        sentences = interruption(found, cluster.name, time.time())
    except BadBackupNoteError as error:  # a stop resolves this
        sentences = str(error)
    if sentences:
        say(sentences)


def _list_teardown(arguments: argparse.Namespace, name: str, found: Inventory, disk: str) -> bool:
    """Print what a stop deletes and keeps; return whether it deletes anything."""
    plan = Teardown.of(found, include_reserved=arguments.include_reserved)
    lines = [*plan.lines()]
    if arguments.delete_state:
        lines.append(("delete", "disk", disk, "Ray's state and the logs of jobs"))
    is_something = any(line[0] == "delete" for line in lines)
    if not is_something:
        say(f"Cluster {name}: there is nothing to delete.")
    write_lines(format_columns(lines) if lines else [])
    if plan.kept_slices or plan.kept_queues:
        say("Reserved slices and queued resources are kept: --include-reserved deletes them too.")
    return is_something


def manager_of(cluster: FleetCluster, fleet: Fleet, *, must_be_fresh: bool = True) -> ClusterManager:
    """Return the cluster manager of a cluster, reporting to the user.

    Raises:
        FleetError: The cluster file differs from the fleet file, or Google Cloud does not answer.
    """
    return cluster_manager(cluster, fleet, say, _echo, must_be_fresh=must_be_fresh)


def jobs_to_preserve(arguments: argparse.Namespace, cluster: FleetCluster) -> JobPreservation:
    """Return the options' choice for the unmanaged jobs of a cluster to restart."""
    return JobPreservation(
        cluster,
        ClusterJobBackup(cluster, say),
        say,
        is_to_keep=arguments.preserve_jobs,
        may_abandon=arguments.abandon_kept_jobs,
    )


def wait_until_ready(arguments: argparse.Namespace, cluster: FleetCluster) -> int:
    """Wait for a cluster if requested. Raises ``NotReadyError``."""
    if arguments.wait:
        Readiness(say).wait(cluster, arguments.timeout)
        say(f"Cluster {cluster.name} is ready.")
    else:
        say(f"Cluster {cluster.name} is being started: 'tradewind cluster status {cluster.name}' shows its progress.")
    return 0


def look_for_image(cluster: FleetCluster) -> None:
    """Check that the cluster's image exists; warn if unknown. Raises ``FleetError`` if it does not."""
    try:
        check_image(cluster, google_api("artifactregistry"))
    except CloudError as error:
        say(f"Cannot check the image of {cluster.name}: {error}")


def _look_for_secrets(cluster: FleetCluster) -> None:
    """Do the same for its token and variables: without them its head is created, but never set up."""
    try:
        check_secrets(cluster, google_api("secretmanager"))
    except CloudError as error:
        say(f"Cannot check the secrets of {cluster.name}: {error}")


def _echo(line: str) -> None:
    print(as_line(line), file=sys.stderr, flush=True)


def repair(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Make one pass of slice repair, as upkeep does, and print the table of slices.

    Raises:
        CommandError: Another operation is changing the cluster, or a slice needs a user.
        FleetError: Google Cloud, the head or the bucket does not answer.
    """
    cluster = fleet.cluster(arguments.name)
    lock = ClusterLock.of(cluster)
    note = LockNote.of(cluster.name, lock.read(), lock.now())
    if note is not None and note.is_left_out:  # its slices look dead meanwhile
        raise CommandError(f"{note.sentence} Nothing was changed.")
    try:
        with translated_tpu_errors():
            report = _repair_of(cluster, is_dry=arguments.dry_run).run_once()
    except SliceRecordError as error:
        raise CommandError(str(error)) from None
    write_lines(report.table().splitlines())
    if report.needs_attention:
        stuck = "; ".join(f"{found.name}: {found.reason}" for found in report.needs_attention)
        raise CommandError(f"No repair brings these slices back, so a user must act: {stuck}")
    return 0


def _repair_of(cluster: FleetCluster, *, is_dry: bool) -> SliceRepair:
    records = slice_records(cluster)

    def hosts() -> dict[str, int] | None:
        nodes = _nodes_of(cluster)
        return None if nodes is None else hosts_alive(nodes)

    return SliceRepair(
        TpuApi(cluster.project, cluster.zone, poll_s=2.0),
        hosts,
        Scope(labels={CLUSTER_LABEL: cluster.name}),
        records,
        dry_run=is_dry,
        lock=RepairLock(f"{records.folder}/{LOCK_FILE}"),
    )


def split_type(arguments: argparse.Namespace) -> None:
    """Assign the words of ``add-worker`` to ``name`` and ``type``.

    Raises:
        UsageError: There are more than two.
    """
    *names, arguments.type = arguments.words
    if len(names) > 1:
        raise UsageError(f"add-worker takes [CLUSTER] TYPE, and {len(arguments.words)} words were given.")
    arguments.name = names[0] if names else None


def add_worker(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Add a slice, and wait for it.

    Raises:
        UsageError: There is no such slice type.
        ClusterBusyError: Another operation is changing the cluster.
        InterruptedOperationError: An interrupted operation must be finished first.
        FleetError: The slice cannot be added, or is not ready in time.
    """
    cluster = fleet.cluster(arguments.name)
    slices = _slices(cluster, fleet)
    kind = _kinds(slices, [arguments.type])[0]
    capacity = Capacity(arguments.capacity.replace("-", "_")) if arguments.capacity else cluster.capacity
    name = arguments.slice or slices.new_name(kind)
    with ClusterLock.of(cluster).take(ADD_WORKER, "asking for a slice") as lock:
        slices.add(name, kind, capacity)
        lock.finish()
    if arguments.wait:
        slices.wait(name, arguments.timeout)
    return 0


def remove_worker(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Delete a manual slice, once the user agrees. Raises the same."""
    cluster = fleet.cluster(arguments.name)
    slices = _slices(cluster, fleet)
    if slices.is_awaited(arguments.slice):
        agree(arguments, f"Slice {arguments.slice} does not exist, and fleet maintenance requests it. Give it up?")
        with ClusterLock.of(cluster).take(REMOVE_WORKER, "giving a slice up") as lock:
            slices.give_up(arguments.slice)
            lock.finish()
        return 0
    one = slices.find(arguments.slice)
    say(f"Slice {one.name} of {cluster.name}: {one.kind.name}, {one.capacity.value}, {one.state}.")
    agree(arguments, f"Delete slice {one.name}?")
    with ClusterLock.of(cluster).take(REMOVE_WORKER, "deleting a slice") as lock:
        slices.remove(one.name, lock.check)
        lock.finish()
    return 0


def resize(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Replace a slice by smaller ones, once the user agrees. Raises the same."""
    cluster = fleet.cluster(arguments.name)
    slices = _slices(cluster, fleet)
    kinds = _kinds(slices, arguments.type)
    agree(arguments, f"Delete slice {arguments.slice}, and replace it by {', '.join(kind.name for kind in kinds)}?")
    for name in slices.resize(arguments.slice, kinds, ClusterLock.of(cluster)):
        if arguments.wait:
            slices.wait(name, arguments.timeout)
    return 0


def _slices(cluster: FleetCluster, fleet: Fleet) -> ManualSlices:
    import yaml  # type: ignore[import-untyped]

    config_hash(cluster, fleet)
    config = yaml.safe_load(cluster_file(cluster, fleet).read_text())
    with translated_tpu_errors():
        api = TpuApi(cluster.project, cluster.zone, poll_s=2.0)
    return ManualSlices(
        cluster,
        api,
        slice_records(cluster),
        script=lambda kind: start_script(cluster, config, kind),
        nodes=lambda: _nodes_of(cluster),
        tell=say,
    )


def _kinds(slices: ManualSlices, names: Iterable[str]) -> list[SliceType]:
    try:
        return [slices.check_kind(name) for name in names]
    except UnknownSliceTypeError as error:
        raise UsageError(str(error)) from None


def _nodes_of(cluster: FleetCluster) -> list[NodeInfo] | None:
    try:
        find_head(cluster)
    except SeveralHeadsError:
        raise
    except NoHeadError:
        return None
    try:
        with connected(cluster) as connection:
            return cluster_nodes(connection)
    except (FleetError, RayJobsError) as error:
        raise FleetError(f"Cannot check whether the slice is in use: {error} Nothing was changed.") from None


def cluster_nodes(connection: RayCluster) -> list[NodeInfo]:
    """Return the nodes of a cluster."""

    async def fetch() -> list[NodeInfo]:
        async with JobsApi(connection) as api:
            return await fetch_nodes(api)

    return asyncio.run(fetch())
