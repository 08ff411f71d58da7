"""Development sessions: slices held for users by jobs on the cluster, and the heartbeats that keep them.

Any user who may submit jobs can name one like another user's, and have it report any slice. So files go only to a slice
that this machine has recorded for its own job, and the cluster only tells whether that job still runs. On another
machine, the user must name the job.

Heartbeats use one ``ssh`` to the head, which is reopened when it is lost. They end with this process in any case,
because the remote end reads a pipe of it.
"""

from __future__ import annotations

import re
import secrets
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from tradewind.cloud_tpu.host_files import METADATA, BadDevSliceError, DevSlice, heartbeat_path, is_dev_name
from tradewind.fleet.access.hosts import ClusterHosts, SliceHost
from tradewind.fleet.access.ssh import (
    RunEnv,
    SshHost,
    connection_loss_reason,
    end_of,
    remote_command,
    ssh_to,
    start_ssh,
)
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError, on_one_line
from tradewind.fleet.local_paths import state_folder
from tradewind.machine import write_private_file
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.details import USER, JobDetails
from tradewind.ray_jobs.request import JobRequest
from tradewind.ray_jobs.worker_python import start_command

_PREFIX: Final = "dev-tpu"
_JOB: Final = re.compile(_PREFIX + r"-[a-z0-9]+(-[a-z0-9]+)*")
_MAX_JOB_CHARS: Final = 128
_OBSOLETE_S: Final = 30 * 86400.0
_MAX_RECORD_BYTES: Final = 1 << 20
_HEAD: Final = {"node:__internal_head__": 0.001}
_STOP_ENV: Final = {"RAY_JOB_STOP_WAIT_TIME_S": "30"}
"""Time for a stopped holder to end the processes on the hosts, until Ray kills it."""
_PROGRAM: Final = "tradewind.runtime.dev_slice"
_RECONNECT_S: Final = 3.0
_GRACE_S: Final = 10.0
_BEAT: Final = b"beat\n"
_BYE: Final = b"bye\n"
_FAR_END: Final = (
    'file=~/{file}; mkdir -p -m 700 "${{file%/*}}"; '
    'while read -r word; do case $word in beat) touch "$file" ;; bye) rm -f "$file"; exit 0 ;; esac; done'
)


def is_session_id(job: str) -> bool:
    """Whether ``allocate`` could have created this job ID, which also names a folder on hosts."""
    return len(job) <= _MAX_JOB_CHARS and _JOB.fullmatch(job) is not None


class LocalSessions:
    """Records of this user's sessions on one cluster: a private file for each.

    Args:
        root: Parent of the records of all clusters; default: the folder of this user's records.
    """

    def __init__(self, cluster: FleetCluster, root: Path | None = None) -> None:
        self._folder = (root or state_folder() / "dev") / cluster.project / cluster.name

    def note(self, job: str, name: str, held: DevSlice) -> None:
        """Record that ``job`` holds the slice ``held`` under ``name``; delete obsolete records."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for file in self._folder.iterdir():
            with suppress(OSError):
                if file.stat().st_mtime < time.time() - _OBSOLETE_S:  # of a killed command
                    file.unlink()
        write_private_file(self._folder / job, f"{name}\n{held.line()}\n")

    def forget(self, job: str) -> None:
        """Delete the record of ``job``, if it exists."""
        (self._folder / job).unlink(missing_ok=True)

    def called(self, name: str) -> dict[str, DevSlice]:
        """Return job → slice of the sessions with this name, the newest first."""
        with suppress(OSError):
            files = [file for file in self._folder.iterdir() if is_session_id(file.name)]
            newest = sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True)
            return {file.name: held for file in newest if (held := _read_record(file, name)) is not None}
        return {}


def _read_record(file: Path, name: str) -> DevSlice | None:
    with suppress(OSError, ValueError, BadDevSliceError), file.open() as opened:
        recorded, _, line = opened.read(_MAX_RECORD_BYTES).partition("\n")
        return DevSlice.in_log(line) if recorded == name else None
    return None


@dataclass(frozen=True)
class DevSession:
    """One slice that a job holds for a user.

    Attributes:
        job: The job that holds it; its ID names the files of the session.
        marks: The mark of processes on each host, in the order of ``hosts``.
    """

    job: str
    held: DevSlice
    hosts: tuple[SliceHost, ...]
    marks: tuple[str, ...]


def checked_name(name: str) -> str:
    """Return ``name``, if it is a valid name of a session.

    Raises:
        FleetError: The name is invalid.
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
    """Return the job that holds a slice for ``user``, on the head; ``runtime_env`` is one of ``start_env``."""
    who = re.sub(r"[^a-z0-9]+", "-", user.lower()).strip("-")[:30] or "user"
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    job = f"{_PREFIX}-{who}-{name}-{now}-{secrets.token_hex(2)}"
    words = ["python", "-u", "-m", _PROGRAM, job, slice_type, "--silent", f"{silent_s:g}", "--wait", f"{wait_s:g}"]
    metadata = {METADATA: name, **({USER: user} if user else {})}
    env = {**runtime_env, "env_vars": {**(runtime_env.get("env_vars") or {}), **_STOP_ENV}}
    return JobRequest(job, start_command(shlex.join(words)), env, metadata, num_cpus=0.0, resources=_HEAD)


def active_holders(jobs: Sequence[JobDetails], name: str, user: str) -> list[JobDetails]:
    """Return the jobs that claim to hold or request a slice called ``name`` for ``user``, the newest first."""
    active = [job for job in jobs if not job.has_ended and job.metadata.get(METADATA) == name]
    claimed = [job for job in active if job.metadata.get(USER, "") == user]
    return sorted(claimed, key=lambda job: -(job.started_ms or 0))


def held_slice(jobs: RayJobs, job: str) -> DevSlice | None:
    """Return the slice that the holder reports in its log; None if it has not reported one yet.

    Raises:
        FleetError: The report is invalid.
    """
    try:
        return DevSlice.in_log(jobs.log_text(job) or "")
    except BadDevSliceError as error:
        raise FleetError(f"Job {job}: {error}") from None


def find_session(
    cluster: FleetCluster,
    jobs: Sequence[JobDetails],
    hosts: ClusterHosts,
    own: LocalSessions,
    *,
    name: str,
    user: str,
) -> DevSession:
    """Return the slice that was allocated from this machine under ``name``.

    Args:
        jobs: All jobs of the cluster.
        user: Owner of the slice; the error names a job that only claims to hold it for this user.

    Raises:
        FleetError: No running job of this machine holds it, or Google Cloud does not return its hosts.
    """
    known = {job.job for job in jobs if not job.has_ended}
    for job, held in own.called(name).items():
        if job in known:
            return refresh_hosts(cluster, job, held, hosts.named([held.name]))
    none = f"You hold no slice called {name} on cluster {cluster.name}"
    if claimed := active_holders(jobs, name, user):
        job = on_one_line(claimed[0].job[:_MAX_JOB_CHARS])
        raise FleetError(
            f"{none} that is ready and was allocated from this machine. Job {job} says that it holds one for you, as "
            "any job can say: add --job with its id if you have allocated it elsewhere."
        )
    option = "" if name == user else f" --name {name}"
    raise FleetError(
        f"{none}: 'tradewind dev-tpu allocate TYPE --cluster {cluster.name}{option}' reserves one, and holds it while "
        "it runs."
    )


def named_session(cluster: FleetCluster, jobs: RayJobs, hosts: ClusterHosts, job: str) -> DevSession:
    """Return the slice that ``job`` reports to hold; the user vouches for the job.

    Raises:
        FleetError: The job is no holder, has ended, or holds no slice yet, or Google Cloud does not return the hosts.
    """
    if not is_session_id(job):
        raise FleetError(f"--job {on_one_line(job[:_MAX_JOB_CHARS])} is no id that 'dev-tpu allocate' gives.")
    details = jobs.details(job)
    held = None if details is None or details.has_ended else held_slice(jobs, job)
    if held is None or held.refused:
        raise FleetError(f"Job {job} holds no slice of cluster {cluster.name}: it has ended, or waits for one.")
    return refresh_hosts(cluster, job, held, hosts.named([held.name]))


def select_hosts(session: DevSession, numbers: Sequence[int]) -> list[int]:
    """Return the given host numbers, sorted; all of the slice if none is given.

    Raises:
        FleetError: The slice has no host of a number.
    """
    last = len(session.hosts) - 1
    for number in numbers:
        if number > last:
            raise FleetError(
                f"Slice {session.held.name} has no host {number}: it has 0{f' to {last}' if last else ''}."
            )
    return sorted(set(numbers)) or list(range(last + 1))


def refresh_hosts(cluster: FleetCluster, job: str, held: DevSlice, hosts: Sequence[SliceHost]) -> DevSession:
    """Return the session of ``held`` with its ``hosts`` in Google Cloud now.

    Raises:
        FleetError: The hosts are not those that the job reserved: the slice was recreated under its name.
    """
    if [host.ip for host in held.hosts] != [host.internal_ip for host in hosts]:
        raise FleetError(
            f"Slice {held.name} of cluster {cluster.name} has other hosts than when job {job} reserved it: it was "
            "recreated. Allocate again."
        )
    return DevSession(job, held, tuple(hosts), tuple(host.mark for host in held.hosts))


class HeartbeatSender:
    """Sends heartbeats from ``__enter__`` until ``__exit__``, which ends the session.

    Args:
        head: Returns the head; called at each reconnection.
        every_s: Time between heartbeats.
        tell: Called with a sentence when the connection is lost.
    """

    def __init__(
        self, session: str, head: Callable[[], SshHost], *, every_s: float, tell: Callable[[str], None]
    ) -> None:
        self._line = _FAR_END.format(file=shlex.quote(heartbeat_path(session)))
        self._head = head
        self._every_s = every_s
        self._tell = tell
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="heartbeats")

    def __enter__(self) -> HeartbeatSender:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(2 * _GRACE_S)

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                why = self._send(self._head())
            except (FleetError, OSError) as error:
                why = str(error)
            if not self._is_over.wait(_RECONNECT_S):
                self._tell(f"{why} Trying again: the slice is given back if that lasts.")

    def _send(self, head: SshHost) -> str:
        """Send heartbeats until the connection is lost or the block ends; return the reason of a loss."""
        command = remote_command(self._line, RunEnv.AUTO, is_terminal=False)
        with tempfile.TemporaryFile() as errors, ssh_to(head, "-T") as words:
            # In a session of its own, so that Ctrl-C reaches only this command.
            ssh = start_ssh(
                [*words, command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
                start_new_session=True,
            )  # fmt: skip
            try:
                assert ssh.stdin is not None
                while ssh.poll() is None:
                    ssh.stdin.write(_BEAT)
                    ssh.stdin.flush()
                    if self._is_over.wait(self._every_s):
                        ssh.stdin.write(_BYE)
                        ssh.stdin.flush()
                        break
            except OSError:  # ssh has exited
                pass
            finally:
                _stop(ssh)
            return connection_loss_reason(end_of(errors), head)


def _stop(ssh: subprocess.Popen[bytes]) -> None:
    """Close the input of ``ssh``, which ends it; kill it if it does not end in time."""
    with suppress(OSError):
        assert ssh.stdin is not None
        ssh.stdin.close()
    try:
        ssh.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        ssh.kill()
        ssh.wait()
