"""The slice that a command of ``tradewind dev-tpu`` is about, and its hosts as one logs in on them."""

from __future__ import annotations

import argparse
import getpass
import re
from collections.abc import Sequence

from tradewind.fleet.access.hosts import ClusterHosts
from tradewind.fleet.access.reached import reached
from tradewind.fleet.clusters import Fleet
from tradewind.fleet.dev.hosts import DevHosts
from tradewind.fleet.dev.own_sessions import OwnSessions
from tradewind.fleet.dev.sessions import checked_name, chosen, find_session, named_session
from tradewind.ray_jobs.client import RayJobs


def this_person() -> str:
    """Who gives the command; empty if this user has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return ""


def name_of(arguments: argparse.Namespace, user: str) -> str:
    """What the slice is called.

    Raises:
        FleetError: Nothing may be called so.
    """
    usual = re.sub(r"[^a-z0-9]+", "-", user.lower()).strip("-0123456789")[:30].strip("-") or "dev"
    return checked_name(arguments.name or usual)


def held_hosts(arguments: argparse.Namespace, fleet: Fleet, numbers: Sequence[int]) -> DevHosts:
    """The hosts with these numbers, or all, of the slice that this person holds.

    Raises:
        NoDevSliceError: They hold none.
        FleetError: Google Cloud or the head does not let us.
        RayJobsError: The cluster's Ray does not answer.
    """
    cluster, user = fleet.cluster(arguments.cluster), this_person()
    name = name_of(arguments, user)
    there = ClusterHosts(cluster)
    with reached(cluster) as way:
        jobs = RayJobs(way)
        session = (
            named_session(cluster, jobs, there, arguments.job)
            if arguments.job is not None
            else find_session(cluster, jobs.jobs(), there, OwnSessions(cluster), name=name, user=user)
        )
    meant = chosen(session, numbers)
    machines = there.reachable([session.hosts[number] for number in meant])
    return DevHosts(session, machines, [session.marks[number] for number in meant])
