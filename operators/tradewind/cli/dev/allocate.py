"""``tradewind dev-tpu allocate``: a job holds a slice for as long as this command gives signs of life."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import time
from typing import Final

from tradewind.calls.shipping import ship_tradewind
from tradewind.cli.dev.held import name_of, this_person
from tradewind.cli.errors import CommandError, UsageError
from tradewind.cli.output import say
from tradewind.cloud_tpu.on_hosts.dev_slices import DevSlice
from tradewind.fleet.access.hosts import ClusterHosts
from tradewind.fleet.access.reached import reached
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.dev.own_sessions import OwnSessions
from tradewind.fleet.dev.sessions import active_holders, held_slice, holder_request
from tradewind.fleet.dev.signs import SignsSender
from tradewind.fleet.errors import FleetError
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.checks import check_request
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.environment.runtime_env import prepared
from tradewind.ray_jobs.errors import RayJobsError
from tradewind.ray_jobs.follow.stopping import stop_job
from tradewind.timeouts import within

_SHORTEST_SILENCE_S: Final = 5.0
_SIGNS_IN_SILENCE: Final = 6.0
_MOST_EVERY_S: Final = 10.0
_LOOK_S: Final = 1.0
_LOOK_AGAIN_S: Final = 10.0
_CALM_LOOKS: Final = 20
_STOPPING_S: Final = 90.0


def allocate(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Reserve a slice, and hold it until somebody presses Ctrl-C.

    Raises:
        UsageError: The cluster has no such slices, or is not for this person.
        CommandError: No slice is free, or it was lost.
        FleetError: Google Cloud or the head does not let us.
        RayJobsError: The cluster's Ray does not answer.
    """
    cluster, user = fleet.cluster(arguments.cluster), this_person()
    name = name_of(arguments, user)
    _check(cluster, arguments, user)
    wait_s, silent_s = arguments.wait or 0.0, arguments.heartbeat_timeout
    runtime_env = prepared(ship_tradewind({}))
    request = check_request(
        holder_request(name, user, arguments.type, wait_s=wait_s, silent_s=silent_s, runtime_env=runtime_env)
    )
    every_s = min(silent_s / _SIGNS_IN_SILENCE, _MOST_EVERY_S)
    with reached(cluster) as way:
        jobs = RayJobs(way)
        if before := active_holders(jobs.jobs(), name, user):
            raise CommandError(
                f"You hold a slice called {name} on cluster {cluster.name} already, or wait for one: job "
                f"{before[0].job}. Give this one another --name, or end that command, or 'tradewind jobs stop "
                f"--cluster {cluster.name} {before[0].job}'."
            )
        jobs.submit_or_attach(request)
    say(f"Job {request.submission_id} asks for a {arguments.type} slice of cluster {cluster.name}.")
    holding = Holding(cluster, request.submission_id, name, _options(arguments))
    try:
        head = ClusterHosts(cluster).head
        with SignsSender(request.submission_id, head, every_s=every_s, tell=say):
            holding.follow()
    finally:
        holding.end()
    return 0


class Holding:
    """One job that holds a slice, followed from here.

    Args:
        name: What the slice is called.
        options: Those that name the slice on another command line.
    """

    def __init__(self, cluster: FleetCluster, job: str, name: str, options: str) -> None:
        self._cluster = cluster
        self._job = job
        self._name = name
        self._own = OwnSessions(cluster)
        self._options = options
        self._held: DevSlice | None = None
        self._has_ended = False

    def follow(self) -> None:
        """Look at the job until it has ended, through times in which the cluster does not answer.

        Raises:
            CommandError: It has ended.
        """
        told = False
        while True:
            try:
                with reached(self._cluster) as way:
                    jobs, told = RayJobs(way), False
                    while True:
                        self._look(jobs)
                        time.sleep(_LOOK_S if self._held is None else _LOOK_AGAIN_S)
            except (FleetError, RayJobsError) as error:
                if not told:
                    say(f"{error} Trying again.")
                told = True
                time.sleep(_LOOK_AGAIN_S)

    def end(self) -> None:
        """Have the job ended when this returns, if it can be asked; what it held is free then."""
        self._own.forget(self._job)
        if self._has_ended:
            return
        try:
            with reached(self._cluster) as way:
                asyncio.run(_ended(way, self._job))
        except (FleetError, RayJobsError, TimeoutError) as error:
            say(f"{error} Job {self._job} ends by itself, since it hears of this command no more.")
            return
        held = f"Slice {self._held.name}" if self._held else f"What job {self._job} asked for"
        say(f"{held} was given back.")

    def _look(self, jobs: RayJobs) -> None:
        details = jobs.details(self._job)
        held = held_slice(jobs, self._job) if self._held is None else self._held
        if details is None or details.has_ended:
            self._has_ended = True
            raise CommandError(self._why_over(details, held))
        if held is not None and self._held is None and not held.refused:
            self._held = held
            self._own.note(self._job, self._name, held)
            hosts = "1 host" if len(held.hosts) == 1 else f"{len(held.hosts)} hosts"
            say(f"Slice {held.name}, {hosts}, is yours until Ctrl-C. In another terminal:")
            say(f"  tradewind dev-tpu execute{self._options} -- COMMAND")
            say(f"  tradewind dev-tpu connect{self._options}")

    def _why_over(self, details: JobDetails | None, held: DevSlice | None) -> str:
        if held is not None and held.refused:
            return (
                f"{held.refused.rstrip('.')}. Cluster {self._cluster.name}: --wait SECONDS waits for one, 'tradewind "
                f"jobs list --cluster {self._cluster.name}' shows who uses them."
            )
        state = "the cluster does not know it any more" if details is None else details.status
        lost = "Slice " + held.name if held is not None else "The slice"
        return f"{lost} is not yours any more: job {self._job} has ended ({state}); its log says why."


def _check(cluster: FleetCluster, arguments: argparse.Namespace, user: str) -> None:
    offered = [pool.kind.name for pool in cluster.pools]
    if arguments.type not in offered:
        raise UsageError(f"Cluster {cluster.name} has no slices of type {arguments.type!r}: {', '.join(offered)}.")
    if cluster.owner not in (None, user):
        raise UsageError(f"{cluster.not_for(user or 'nobody')} Name another cluster with --cluster.")
    if arguments.heartbeat_timeout < _SHORTEST_SILENCE_S:
        raise UsageError(f"--heartbeat-timeout is {arguments.heartbeat_timeout:g}: at least {_SHORTEST_SILENCE_S:g}.")


def _options(arguments: argparse.Namespace) -> str:
    given = {"--cluster": arguments.cluster, "--name": arguments.name, "--fleet": arguments.fleet}
    words = [word for option, value in given.items() if value for word in (option, value)]
    return "".join(f" {word}" for word in map(shlex.quote, words))


async def _ended(way: RayCluster, job: str) -> None:
    """Let it end by itself, since it has heard that it may; else stop it."""
    async with within(_STOPPING_S), JobsApi(way) as api:
        for _ in range(_CALM_LOOKS):
            details = await api.details(job)
            if details is None or details.has_ended:
                return
            await asyncio.sleep(_LOOK_S)
        await stop_job(api, job, say)
