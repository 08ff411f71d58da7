"""The slices that people hold: their jobs on the cluster, found by whose they are and what they are called.

The machine that allocated a slice knows it by itself. Any other one has to be told which job holds it, since a job can
call itself by anybody's name.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from tradewind.cloud_tpu.on_hosts.dev_slices import METADATA, BadDevSliceError, DevSlice, is_dev_name
from tradewind.fleet.access.hosts import ClusterHosts, SliceHost
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.dev.own_sessions import OwnSessions, is_session_id
from tradewind.fleet.errors import FleetError, on_one_line
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.keeping.owners import USER
from tradewind.ray_jobs.request import JobRequest

_PREFIX: Final = "dev-tpu"
_LONGEST_SHOWN: Final = 128
_HEAD: Final = {"node:__internal_head__": 0.001}
_STOPPED_CALMLY: Final = {"RAY_JOB_STOP_WAIT_TIME_S": "30"}
"""So long a holder that is stopped may take to end what runs on the hosts, until Ray kills it."""
_PROGRAM: Final = "tradewind.runtime.dev_slice"


class NoDevSliceError(FleetError):
    """The person holds no slice of this name, or not yet, or not any more."""


@dataclass(frozen=True)
class DevSession:
    """One slice that a person holds.

    Attributes:
        job: The job that holds it, and what its files are called by.
        marks: What processes of each host carry, in the order of ``hosts``.
    """

    job: str
    held: DevSlice
    hosts: tuple[SliceHost, ...]
    marks: tuple[str, ...]


def checked_name(name: str) -> str:
    """``name``, if people may call a slice so.

    Raises:
        FleetError: They may not.
    """
    if not is_dev_name(name):
        raise FleetError(
            f"{name!r} is no name for a slice: lower-case letters, digits and single hyphens, beginning with a letter, "
            "up to 30."
        )
    return name


def holder_request(
    name: str, user: str, slice_type: str, *, wait_s: float, silent_s: float, runtime_env: dict[str, Any]
) -> JobRequest:
    """The job that reserves a slice for ``user`` and holds it; it runs on the head and needs nothing there."""
    who = re.sub(r"[^a-z0-9]+", "-", user.lower()).strip("-")[:30] or "user"
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    job = f"{_PREFIX}-{who}-{name}-{now}-{secrets.token_hex(2)}"
    words = ["python", "-u", "-m", _PROGRAM, job, slice_type, "--silent", f"{silent_s:g}", "--wait", f"{wait_s:g}"]
    metadata = {METADATA: name, **({USER: user} if user else {})}
    env = {**runtime_env, "env_vars": {**(runtime_env.get("env_vars") or {}), **_STOPPED_CALMLY}}
    return JobRequest(job, shlex.join(words), env, metadata, num_cpus=0.0, resources=_HEAD)


def active_holders(jobs: Sequence[JobDetails], name: str, user: str) -> list[JobDetails]:
    """The jobs by which ``user`` holds, or asks for, a slice called ``name``; the newest first."""
    found = [job for job in jobs if not job.has_ended and job.metadata.get(METADATA) == name]
    ours = [job for job in found if job.metadata.get(USER, "") == user]
    return sorted(ours, key=lambda job: -(job.started_ms or 0))


def held_slice(jobs: RayJobs, job: str) -> DevSlice | None:
    """What the holder says of its slice; None if it has not yet.

    Raises:
        NoDevSliceError: That cannot be read.
    """
    try:
        return DevSlice.in_log(jobs.log_text(job) or "")
    except BadDevSliceError as error:
        raise NoDevSliceError(f"Job {job}: {error}") from None


def find_session(
    cluster: FleetCluster,
    jobs: Sequence[JobDetails],
    there: ClusterHosts,
    own: OwnSessions,
    *,
    name: str,
    user: str,
) -> DevSession:
    """The slice that was allocated from this machine under ``name``.

    Args:
        jobs: All that the cluster knows.
        user: Whom it belongs to, to tell of jobs that say the same of themselves.

    Raises:
        NoDevSliceError: There is none.
        FleetError: Google Cloud does not say where its hosts are.
    """
    known = {job.job for job in jobs if not job.has_ended}
    for job, held in own.called(name).items():
        if job in known:
            return still_held(cluster, job, held, there.named([held.name]))
    none = f"You hold no slice called {name} on cluster {cluster.name}"
    if claimed := active_holders(jobs, name, user):
        job = on_one_line(claimed[0].job[:_LONGEST_SHOWN])
        raise NoDevSliceError(
            f"{none} that is ready and was allocated from this machine. Job {job} says that it holds one for you, as "
            "any job can say: add --job with its id if you have allocated it elsewhere."
        )
    raise NoDevSliceError(
        f"{none}: 'tradewind dev-tpu allocate TYPE --cluster {cluster.name}{_called(name, user)}' reserves one, and "
        "holds it while it runs."
    )


def named_session(cluster: FleetCluster, jobs: RayJobs, there: ClusterHosts, job: str) -> DevSession:
    """The slice that ``job`` says it holds, which somebody vouches for.

    Raises:
        NoDevSliceError: It is no such job, has ended, or holds none yet.
        FleetError: Google Cloud does not say where its hosts are.
    """
    if not is_session_id(job):
        raise NoDevSliceError(f"--job {on_one_line(job[:_LONGEST_SHOWN])} is no id that 'dev-tpu allocate' gives.")
    details = jobs.details(job)
    held = None if details is None or details.has_ended else held_slice(jobs, job)
    if held is None or held.refused:
        raise NoDevSliceError(f"Job {job} holds no slice of cluster {cluster.name}: it has ended, or waits for one.")
    return still_held(cluster, job, held, there.named([held.name]))


def chosen(session: DevSession, numbers: Sequence[int]) -> list[int]:
    """The hosts that are meant, by their numbers: all of them if none is named.

    Raises:
        FleetError: There is none of a number.
    """
    last = len(session.hosts) - 1
    for number in numbers:
        if number > last:
            raise FleetError(
                f"Slice {session.held.name} has no host {number}: it has 0{f' to {last}' if last else ''}."
            )
    return sorted(set(numbers)) or list(range(last + 1))


def still_held(cluster: FleetCluster, job: str, held: DevSlice, hosts: Sequence[SliceHost]) -> DevSession:
    """The slice with its ``hosts`` as Google Cloud has them now.

    Raises:
        NoDevSliceError: They are not those that were reserved: it was made anew under its name.
    """
    if [host.ip for host in held.hosts] != [host.internal_ip for host in hosts]:
        raise NoDevSliceError(
            f"Slice {held.name} of cluster {cluster.name} has other hosts than when job {job} reserved it: it was made "
            "anew. Allocate again."
        )
    return DevSession(job, held, tuple(hosts), tuple(host.mark for host in held.hosts))


def _called(name: str, user: str) -> str:
    return "" if name == user else f" --name {name}"
