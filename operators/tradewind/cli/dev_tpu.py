"""``tradewind dev-tpu``: hold a slice for a user, and run commands on it.

``allocate`` starts a job that holds the slice while the command sends heartbeats. ``connect``, ``execute`` and
``watch`` run something on the slice's hosts.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import secrets
import shlex
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tradewind.cli.fleet.access import PrefixedLines, report_results
from tradewind.cli.fleet.cluster import run_on_fleet
from tradewind.cli.fleet.fleet_file import cluster_at, fleet_file_of, is_path, load_chosen_fleet
from tradewind.cli.interrupts import Interrupted
from tradewind.cli.jobs.clusters import explain_error
from tradewind.cli.jobs.env import SETTINGS_FILE, job_env
from tradewind.cli.output import CommandError, UsageError, say, user_name
from tradewind.cloud_tpu.host_files import DevSlice
from tradewind.fleet.access.connect import connected
from tradewind.fleet.access.hosts import ClusterHosts
from tradewind.fleet.access.ssh import HostResult, HostRuns, run_interactive
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.dev_hosts import DevHosts, Listing, LocalTree
from tradewind.fleet.dev_sessions import (
    HeartbeatSender,
    LocalSessions,
    active_holders,
    checked_name,
    find_session,
    held_slice,
    holder_request,
    named_session,
    select_hosts,
)
from tradewind.fleet.errors import FleetError
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.errors import BadRequestError, RayJobsError
from tradewind.ray_jobs.follow.stopping import stop_job
from tradewind.ray_jobs.request import check_request
from tradewind.ray_jobs.runtime_env import prepare_runtime_env
from tradewind.serialization.job_start import JobStart, start_env
from tradewind.timeouts import within

_MIN_HEARTBEAT_TIMEOUT_S: Final = 5.0
_HEARTBEATS_PER_TIMEOUT: Final = 6.0
_MAX_HEARTBEAT_INTERVAL_S: Final = 10.0
_JOB_POLL_S: Final = 1.0
_HELD_POLL_S: Final = 10.0
_END_POLLS: Final = 20
_STOP_TIMEOUT_S: Final = 90.0
_WATCH_POLL_S: Final = 0.5


def name_of(arguments: argparse.Namespace, user: str) -> str:
    """Return the name of the slice.

    Raises:
        FleetError: The name is invalid.
    """
    default = re.sub(r"[^a-z0-9]+", "-", user.lower()).strip("-0123456789")[:30].strip("-") or "dev"
    return checked_name(arguments.name or default)


def held_hosts(arguments: argparse.Namespace, fleet: Fleet, numbers: Sequence[int]) -> DevHosts:
    """Return the hosts with these numbers, or all, of the slice that the user holds.

    Raises:
        FleetError: The user holds no such slice.
        FleetError: Google Cloud or the head refuses access.
        RayJobsError: The cluster's Ray does not answer.
    """
    cluster, user = fleet.cluster(arguments.cluster), user_name()
    name = name_of(arguments, user)
    cluster_hosts = ClusterHosts(cluster)
    with connected(cluster) as connection:
        jobs = RayJobs(connection)
        session = (
            named_session(cluster, jobs, cluster_hosts, arguments.job)
            if arguments.job is not None
            else find_session(cluster, jobs.jobs(), cluster_hosts, LocalSessions(cluster), name=name, user=user)
        )
    selected = select_hosts(session, numbers)
    machines = cluster_hosts.reachable([session.hosts[number] for number in selected])
    return DevHosts(session, machines, [session.marks[number] for number in selected])


def allocate(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Reserve a slice, and hold it until the user presses Ctrl-C.

    Raises:
        UsageError: The cluster has no such slices, or belongs to another user.
        CommandError: No slice is free, or it was lost.
        FleetError: Google Cloud or the head refuses access.
        RayJobsError: The cluster's Ray does not answer.
    """
    cluster, user = fleet.cluster(arguments.cluster), user_name()
    name = name_of(arguments, user)
    _check(cluster, arguments, user)
    wait_s, timeout_s = arguments.wait or 0.0, arguments.heartbeat_timeout
    runtime_env = prepare_runtime_env(start_env({}, JobStart()))
    request = check_request(
        holder_request(name, user, arguments.type, wait_s=wait_s, silent_s=timeout_s, runtime_env=runtime_env)
    )
    every_s = min(timeout_s / _HEARTBEATS_PER_TIMEOUT, _MAX_HEARTBEAT_INTERVAL_S)
    with connected(cluster) as connection:
        jobs = RayJobs(connection)
        if before := active_holders(jobs.jobs(), name, user):
            raise CommandError(
                f"Job {before[0].job} already holds a slice called {name} of cluster {cluster.name} for you, or waits "
                "for one. Give this one another --name, end that command, or stop the job with 'tradewind jobs stop "
                f"--cluster {cluster.name} {before[0].job}'."
            )
        jobs.submit_or_attach(request)
    say(f"Job {request.submission_id} requests a {arguments.type} slice of cluster {cluster.name}.")
    holding = HeldSliceJob(cluster, request.submission_id, name, _options(arguments))
    try:
        head = ClusterHosts(cluster).head
        with HeartbeatSender(request.submission_id, head, every_s=every_s, tell=say):
            holding.follow()
    finally:
        holding.end()
    return 0


class HeldSliceJob:
    """Follow one job that holds a slice.

    Args:
        name: Name of the slice.
        options: Options that name the slice on another command line.
    """

    def __init__(self, cluster: FleetCluster, job: str, name: str, options: str) -> None:
        self._cluster = cluster
        self._job = job
        self._name = name
        self._own = LocalSessions(cluster)
        self._options = options
        self._held: DevSlice | None = None
        self._has_ended = False

    def follow(self) -> None:
        """Poll the job until it has ended; outages do not end the polling.

        Raises:
            CommandError: The job has ended.
        """
        is_outage = False
        while True:
            try:
                with connected(self._cluster) as connection:
                    jobs, is_outage = RayJobs(connection), False
                    while True:
                        self._poll(jobs)
                        time.sleep(_JOB_POLL_S if self._held is None else _HELD_POLL_S)
            except (FleetError, RayJobsError) as error:
                if not is_outage:
                    say(f"{error} Retrying every {_HELD_POLL_S:g} s.")
                is_outage = True
                time.sleep(_HELD_POLL_S)

    def end(self) -> None:
        """End the job and free its slice before returning, if the cluster answers."""
        self._own.forget(self._job)
        if self._has_ended:
            return
        try:
            with connected(self._cluster) as connection:
                asyncio.run(_wait_or_stop(connection, self._job))
        except (FleetError, RayJobsError, TimeoutError) as error:
            say(f"{error} Job {self._job} ends by itself, because it no longer gets heartbeats.")
            return
        released = f"Slice {self._held.name}" if self._held else f"The request of job {self._job}"
        say(f"{released} was given back.")

    def _poll(self, jobs: RayJobs) -> None:
        details = jobs.details(self._job)
        held = held_slice(jobs, self._job) if self._held is None else self._held
        if details is None or details.has_ended:
            self._has_ended = True
            raise CommandError(self._explain_end(details, held))
        if held is not None and self._held is None and not held.refused:
            self._held = held
            self._own.note(self._job, self._name, held)
            hosts = "1 host" if len(held.hosts) == 1 else f"{len(held.hosts)} hosts"
            say(f"Slice {held.name}, {hosts}, is yours until Ctrl-C. In another terminal:")
            say(f"  tradewind dev-tpu execute{self._options} -- COMMAND")
            say(f"  tradewind dev-tpu connect{self._options}")

    def _explain_end(self, details: JobDetails | None, held: DevSlice | None) -> str:
        if held is not None and held.refused:
            return (
                f"{held.refused.rstrip('.')}. Wait for one with --wait SECONDS, or list the users of cluster "
                f"{self._cluster.name} with 'tradewind jobs list --cluster {self._cluster.name}'."
            )
        state = "the cluster no longer knows it" if details is None else details.status
        lost = f"Slice {held.name}" if held is not None else "The slice"
        return f"{lost} is no longer yours: job {self._job} has ended ({state}); its log says why."


def _check(cluster: FleetCluster, arguments: argparse.Namespace, user: str) -> None:
    offered = [pool.kind.name for pool in cluster.pools]
    if arguments.type not in offered:
        raise UsageError(f"Cluster {cluster.name} has no slices of type {arguments.type!r}: {', '.join(offered)}.")
    if cluster.owner not in (None, user):
        raise UsageError(f"{cluster.not_for(user or 'a user without a name')} Name another cluster with --cluster.")
    if arguments.heartbeat_timeout < _MIN_HEARTBEAT_TIMEOUT_S:
        minimum = f"{_MIN_HEARTBEAT_TIMEOUT_S:g}"
        raise UsageError(f"--heartbeat-timeout is {arguments.heartbeat_timeout:g}, but must be at least {minimum}.")


def _options(arguments: argparse.Namespace) -> str:
    given = {"--cluster": arguments.cluster, "--name": arguments.name, "--fleet": arguments.fleet}
    words = [word for option, value in given.items() if value for word in (option, value)]
    return "".join(f" {word}" for word in map(shlex.quote, words))


async def _wait_or_stop(connection: RayCluster, job: str) -> None:
    """Wait for the job to end after its last heartbeat; stop it if it does not."""
    async with within(_STOP_TIMEOUT_S), JobsApi(connection) as api:
        for _ in range(_END_POLLS):
            details = await api.details(job)
            if details is None or details.has_ended:
                return
            await asyncio.sleep(_JOB_POLL_S)
        await stop_job(api, job, say)


def dev_tpu(name: str, arguments: argparse.Namespace) -> int:
    """Run the command ``name`` of ``tradewind dev-tpu``.

    Raises:
        UsageError: The options make no sense.
        CommandError: The command failed.
    """
    command = {"allocate": allocate, "connect": connect, "execute": execute, "watch": watch}[name]
    try:
        return run_on_fleet(lambda: command(arguments, _chosen(arguments)))
    except RayJobsError as error:
        kind = UsageError if isinstance(error, BadRequestError) else CommandError
        raise kind(explain_error(error)) from None


def _chosen(arguments: argparse.Namespace) -> Fleet:
    """Load the chosen fleet; replace a file's path in ``arguments.cluster`` by the cluster's name."""
    if arguments.cluster is None or not is_path(arguments.cluster):
        return load_chosen_fleet(arguments.fleet)
    path = Path(arguments.cluster)
    fleet = load_chosen_fleet(arguments.fleet or str(fleet_file_of(path)))
    arguments.cluster = cluster_at(path, fleet).name
    return fleet


def connect(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Open a shell on one host; return its exit code.

    Raises:
        FleetError: The user holds no such slice.
        FleetError: The host cannot be reached.
    """
    hosts = held_hosts(arguments, fleet, [arguments.host])
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    [machine] = hosts.machines
    return run_interactive(machine, hosts.command(machine, "shell", is_terminal=is_terminal), is_terminal=is_terminal)


def execute(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Send the folder and run the command; return its exit code. Raises the same as ``connect``, and

    Raises:
        UsageError: There is no command, or a variable is invalid.
    """
    line, env, tree = _command_line(arguments), _variables(arguments), _tree(arguments)
    hosts = held_hosts(arguments, fleet, arguments.host)
    if not arguments.no_sync:
        _sync(hosts, tree, tree.listing())
    runs = HostRuns(PrefixedLines(hosts.machines).write, is_held=True)
    return _code(hosts.run(runs, line, env, f"execute-{secrets.token_hex(4)}"))


def watch(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Run ``execute`` after each change, until Ctrl-C. Raises the same."""
    line, env, tree = _command_line(arguments), _variables(arguments), _tree(arguments)
    watching = Watching(held_hosts(arguments, fleet, arguments.host), tree, line, env, arguments.debounce)
    try:
        watching.run()
    except Interrupted:
        watching.end()
    return 0


class Watching:
    """Restart one command after each change of a folder.

    Args:
        debounce_s: Time without a change before a restart.
    """

    def __init__(self, hosts: DevHosts, tree: LocalTree, line: str, env: dict[str, str], debounce_s: float) -> None:
        self._hosts = hosts
        self._tree = tree
        self._line = line
        self._env = env
        self._debounce_s = debounce_s
        self._name = f"watch-{secrets.token_hex(4)}"
        self._runs: HostRuns | None = None
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Run until an exception ends it.

        Raises:
            FleetError: An error that no change of the folder can fix. On the first run, any error.
        """
        listing: Listing = self._tree.listing()
        _sync(self._hosts, self._tree, listing)
        self._begin()
        while True:
            listing = self._changed(listing)
            self.end()
            try:
                _sync(self._hosts, self._tree, listing)
            except FleetError as error:  # such as a file that is still being written
                say(f"{error} Waiting for the next change.")
                continue
            self._begin()

    def end(self) -> None:
        """End the command if it is running."""
        if self._runs is not None and self._thread is not None:
            self._runs.end()
            self._thread.join()

    def _begin(self) -> None:
        self._runs = runs = HostRuns(PrefixedLines(self._hosts.machines).write, is_held=True)
        self._thread = threading.Thread(target=self._follow, args=(runs,), daemon=True, name="watched-command")
        self._thread.start()

    def _follow(self, runs: HostRuns) -> None:
        results = self._hosts.run(runs, self._line, self._env, self._name)
        if not runs.was_ended:
            say(f"The command ended with exit code {_code(results)}. Waiting for a change in {self._tree.folder}.")

    def _changed(self, before: Listing) -> Listing:
        """Wait until the folder differs from ``before`` and is stable; return its content."""
        last, since = before, time.monotonic()
        while True:
            time.sleep(min(_WATCH_POLL_S, self._debounce_s))
            now = self._tree.listing()
            if now != last:
                last, since = now, time.monotonic()
            elif now != before and time.monotonic() - since >= self._debounce_s:
                return now


def _sync(hosts: DevHosts, tree: LocalTree, listing: Listing) -> None:
    count = hosts.sync(tree, listing)
    where = f"{len(hosts.machines)} hosts" if len(hosts.machines) > 1 else hosts.machines[0].name
    say(f"Sent {count} of {len(listing)} files to {where}.")


def _code(results: Sequence[HostResult]) -> int:
    """Return the exit code: that of a single host; of several hosts, 1 if any is not 0."""
    if len(results) == 1 and results[0].code is not None:
        return results[0].code
    return report_results(results)


def _command_line(arguments: argparse.Namespace) -> str:
    words = arguments.command
    if len(words) < 2 or words[0] != "--":
        raise UsageError("Write the command after '--': tradewind dev-tpu execute -- python train.py")
    return words[1] if len(words) == 2 else shlex.join(words[1:])


def _variables(arguments: argparse.Namespace) -> dict[str, str]:
    here = Path.cwd()
    return job_env(arguments.env, (), here / arguments.working_dir, here / SETTINGS_FILE, say)


def _tree(arguments: argparse.Namespace) -> LocalTree:
    folder = Path.cwd() / arguments.working_dir
    if not folder.is_dir():
        raise UsageError(f"--working-dir {arguments.working_dir} is not a folder.")
    return LocalTree(folder, arguments.exclude)
