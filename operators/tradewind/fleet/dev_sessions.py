"""Development sessions: slices held for users by jobs on the cluster, and the heartbeats that keep them.

Any user who may submit jobs can name one like another user's, and have it report any slice. So files go only to a slice
that this machine has seen its own job hold, and the cluster is asked only whether that job continues. On another
machine, the user must name the job.

Heartbeats use one ``ssh`` to the head, which is reopened when it is lost. They end with this process, however it ends,
since the remote end reads a pipe of it.
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
from tradewind.fleet.access.ssh import RunEnv, SshError, SshHost, connection_loss_reason, end_of, remote_command, ssh_to
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError, on_one_line
from tradewind.fleet.local_paths import state_folder
from tradewind.machine import write_private_file
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.details import USER, JobDetails
from tradewind.ray_jobs.request import JobRequest

_JOB: Final = re.compile(r"dev-tpu-[a-z0-9]+(-[a-z0-9]+)*")
_LONGEST_JOB: Final = 128
_OLD_S: Final = 30 * 86400.0
_LARGEST_BYTES: Final = 1 << 20


def is_session_id(job: str) -> bool:
    """Whether ``allocate`` could have called a job so: on hosts a folder is called by it."""
    return len(job) <= _LONGEST_JOB and _JOB.fullmatch(job) is not None


class LocalSessions:
    """Those on one cluster: a file for each, for its owner alone.

    Args:
        root: Parent of the sessions of all clusters; default: with this user's other records.
    """

    def __init__(self, cluster: FleetCluster, root: Path | None = None) -> None:
        self._folder = (root or state_folder() / "dev") / cluster.project / cluster.name

    def note(self, job: str, name: str, held: DevSlice) -> None:
        """Write down that ``job`` holds a slice that is called ``name``."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for file in self._folder.iterdir():
            with suppress(OSError):
                if file.stat().st_mtime < time.time() - _OLD_S:  # of one that was killed
                    file.unlink()
        write_private_file(self._folder / job, f"{name}\n{held.line()}\n")

    def forget(self, job: str) -> None:
        """It holds nothing any more."""
        (self._folder / job).unlink(missing_ok=True)

    def called(self, name: str) -> dict[str, DevSlice]:
        """Job → slice, of those that were called ``name``, the newest first."""
        with suppress(OSError):
            files = [file for file in self._folder.iterdir() if is_session_id(file.name)]
            newest = sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True)
            return {file.name: held for file in newest if (held := _held(file, name)) is not None}
        return {}


def _held(file: Path, name: str) -> DevSlice | None:
    with suppress(OSError, ValueError, BadDevSliceError), file.open() as opened:
        given, _, line = opened.read(_LARGEST_BYTES).partition("\n")
        return DevSlice.in_log(line) if given == name else None
    return None


_PREFIX: Final = "dev-tpu"
_LONGEST_SHOWN: Final = 128
_HEAD: Final = {"node:__internal_head__": 0.001}
_STOP_ENV: Final = {"RAY_JOB_STOP_WAIT_TIME_S": "30"}
"""Time for a stopped holder to end the processes on the hosts, until Ray kills it."""
_PROGRAM: Final = "tradewind.runtime.dev_slice"


@dataclass(frozen=True)
class DevSession:
    """One slice that a job holds for a user.

    Attributes:
        job: The job that holds it, and what its files are called by.
        marks: What processes of each host carry, in the order of ``hosts``.
    """

    job: str
    held: DevSlice
    hosts: tuple[SliceHost, ...]
    marks: tuple[str, ...]


def checked_name(name: str) -> str:
    """Return ``name``, if it is a valid name of a session.

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
    env = {**runtime_env, "env_vars": {**(runtime_env.get("env_vars") or {}), **_STOP_ENV}}
    return JobRequest(job, shlex.join(words), env, metadata, num_cpus=0.0, resources=_HEAD)


def active_holders(jobs: Sequence[JobDetails], name: str, user: str) -> list[JobDetails]:
    """The jobs by which ``user`` holds, or asks for, a slice called ``name``; the newest first."""
    found = [job for job in jobs if not job.has_ended and job.metadata.get(METADATA) == name]
    ours = [job for job in found if job.metadata.get(USER, "") == user]
    return sorted(ours, key=lambda job: -(job.started_ms or 0))


def held_slice(jobs: RayJobs, job: str) -> DevSlice | None:
    """What the holder says of its slice; None if it has not yet.

    Raises:
        FleetError: That cannot be read.
    """
    try:
        return DevSlice.in_log(jobs.log_text(job) or "")
    except BadDevSliceError as error:
        raise FleetError(f"Job {job}: {error}") from None


def find_session(
    cluster: FleetCluster,
    jobs: Sequence[JobDetails],
    there: ClusterHosts,
    own: LocalSessions,
    *,
    name: str,
    user: str,
) -> DevSession:
    """The slice that was allocated from this machine under ``name``.

    Args:
        jobs: All that the cluster knows.
        user: Whom it belongs to, to tell of jobs that say the same of themselves.

    Raises:
        FleetError: There is none.
        FleetError: Google Cloud does not say where its hosts are.
    """
    known = {job.job for job in jobs if not job.has_ended}
    for job, held in own.called(name).items():
        if job in known:
            return refresh_hosts(cluster, job, held, there.named([held.name]))
    none = f"You hold no slice called {name} on cluster {cluster.name}"
    if claimed := active_holders(jobs, name, user):
        job = on_one_line(claimed[0].job[:_LONGEST_SHOWN])
        raise FleetError(
            f"{none} that is ready and was allocated from this machine. Job {job} says that it holds one for you, as "
            "any job can say: add --job with its id if you have allocated it elsewhere."
        )
    raise FleetError(
        f"{none}: 'tradewind dev-tpu allocate TYPE --cluster {cluster.name}{_called(name, user)}' reserves one, and "
        "holds it while it runs."
    )


def named_session(cluster: FleetCluster, jobs: RayJobs, there: ClusterHosts, job: str) -> DevSession:
    """Return the slice that ``job`` reports to hold; the user vouches for the job.

    Raises:
        FleetError: It is no such job, has ended, or holds none yet.
        FleetError: Google Cloud does not say where its hosts are.
    """
    if not is_session_id(job):
        raise FleetError(f"--job {on_one_line(job[:_LONGEST_SHOWN])} is no id that 'dev-tpu allocate' gives.")
    details = jobs.details(job)
    held = None if details is None or details.has_ended else held_slice(jobs, job)
    if held is None or held.refused:
        raise FleetError(f"Job {job} holds no slice of cluster {cluster.name}: it has ended, or waits for one.")
    return refresh_hosts(cluster, job, held, there.named([held.name]))


def select_hosts(session: DevSession, numbers: Sequence[int]) -> list[int]:
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


def refresh_hosts(cluster: FleetCluster, job: str, held: DevSlice, hosts: Sequence[SliceHost]) -> DevSession:
    """The slice with its ``hosts`` as Google Cloud has them now.

    Raises:
        FleetError: They are not those that were reserved: it was made anew under its name.
    """
    if [host.ip for host in held.hosts] != [host.internal_ip for host in hosts]:
        raise FleetError(
            f"Slice {held.name} of cluster {cluster.name} has other hosts than when job {job} reserved it: it was made "
            "anew. Allocate again."
        )
    return DevSession(job, held, tuple(hosts), tuple(host.mark for host in held.hosts))


def _called(name: str, user: str) -> str:
    return "" if name == user else f" --name {name}"


_AGAIN_S: Final = 3.0
_GRACE_S: Final = 10.0
_BEAT: Final = b"beat\n"
_BYE: Final = b"bye\n"
_FAR_END: Final = (
    'file=~/{file}; mkdir -p -m 700 "${{file%/*}}"; '
    'while read -r word; do case $word in beat) touch "$file" ;; bye) rm -f "$file"; exit 0 ;; esac; done'
)


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
        self._thread = threading.Thread(target=self._keep, daemon=True, name="signs-of-life")

    def __enter__(self) -> HeartbeatSender:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(2 * _GRACE_S)

    def _keep(self) -> None:
        while not self._is_over.is_set():
            try:
                why = self._send(self._head())
            except (FleetError, OSError) as error:
                why = str(error)
            if not self._is_over.wait(_AGAIN_S):
                self._tell(f"{why} Trying again: the slice is given back if that lasts.")

    def _send(self, head: SshHost) -> str:
        """Give signs until that does not work any more; why."""
        command = remote_command(self._line, RunEnv.AUTO, is_terminal=False)
        with tempfile.TemporaryFile() as said, ssh_to(head, "-T") as words:
            ssh = _started([*words, command], said)
            try:
                assert ssh.stdin is not None
                while ssh.poll() is None:
                    ssh.stdin.write(_BEAT)
                    ssh.stdin.flush()
                    if self._is_over.wait(self._every_s):
                        ssh.stdin.write(_BYE)
                        ssh.stdin.flush()
                        break
            except OSError:  # the pipe's other end has gone
                pass
            finally:
                _ended(ssh)
            return connection_loss_reason(end_of(said), head)


def _started(words: list[str], said: Any) -> subprocess.Popen[bytes]:
    try:  # in a session of its own, so that Ctrl-C is for the command alone
        return subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
        )
    except FileNotFoundError:
        raise SshError("There is no ssh on this machine: install OpenSSH's client.") from None


def _ended(ssh: subprocess.Popen[bytes]) -> None:
    """It ends by itself once its input does."""
    with suppress(OSError):
        assert ssh.stdin is not None
        ssh.stdin.close()
    try:
        ssh.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        ssh.kill()
        ssh.wait()
