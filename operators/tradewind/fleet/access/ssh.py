"""Login and commands on machines of a cluster with OpenSSH's client, with verified host keys.

A machine writes its host keys into its metadata when it is created, and only those are accepted; the user's own
``known_hosts`` is ignored. Each argument of ``ssh`` is a separate word, and no word after the options is parsed as one.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Final

from tradewind.fleet.cloud.heads import ClusterHead, find_head, host_keys
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.fleet.local_paths import expanded

SSH_PORT_VARIABLE: Final = "TRADEWIND_SSH_PORT"
EXIT_CONNECTION_LOST: Final = 255
"""Exit code of ``ssh`` without a connection."""
_MAX_WHY_CHARS: Final = 400
_OPTIONS: Final = (
    "BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes", "GlobalKnownHostsFile=/dev/null",
    "UpdateHostKeys=no", "CheckHostIP=no", "ControlMaster=no", "ControlPath=none", "ExitOnForwardFailure=yes",
    "ConnectTimeout=20", "ServerAliveInterval=15", "ServerAliveCountMax=4",
)  # fmt: skip


class SshError(FleetError):
    """A machine of a cluster cannot be reached by ``ssh``."""


@dataclass(frozen=True)
class SshHost:
    """A machine to log in on.

    Attributes:
        name: Its name for users.
        host_keys: Its published host keys, as in ``known_hosts`` but without a name.
        by: The machine through which it is reached, if it is not reachable from here.
    """

    cluster: str
    name: str
    address: str
    user: str
    private_key: str
    host_keys: tuple[str, ...]
    by: SshHost | None = None

    @staticmethod
    def of_head(cluster: FleetCluster, head: ClusterHead, keys: tuple[str, ...]) -> SshHost:
        """Return the connection to ``head`` of ``cluster``."""
        address = head.external_ip or head.internal_ip
        return SshHost(cluster.name, head.name, address, cluster.ssh_user, cluster.ssh_private_key, keys)


def find_ssh_head(cluster: FleetCluster, compute: Any) -> SshHost:
    """Return the connection to the current head of ``cluster``.

    Raises:
        NoHeadError: It has no head, or not exactly one.
        CloudError: Google Cloud does not answer.
    """
    head = find_head(cluster, compute)
    return SshHost.of_head(cluster, head, host_keys(cluster, head, compute))


@contextmanager
def ssh_to(host: SshHost, *options: str) -> Iterator[list[str]]:
    """Yield the words of an ``ssh`` that logs in on ``host``, valid in the block; the remote command follows them.

    Raises:
        SshError: The private key that the fleet file names is not on this machine.
    """
    with tempfile.TemporaryDirectory(prefix="tradewind-ssh-") as folder:
        known_hosts = Path(folder, "known_hosts")
        machines = [host, *([host.by] if host.by else [])]
        known_hosts.write_text("".join(f"{one.name} {key}\n" for one in machines for key in one.host_keys))
        words = _words(host, known_hosts)
        if host.by:
            target = f"[{host.address}]:{_port()}".replace("%", "%%")
            proxy = [*_words(host.by, known_hosts), "-W", target, "--", host.by.address]
            words += ["-o", f"ProxyCommand={shlex.join(proxy)}"]
        yield [*words, *options, "--", host.address]


def connection_loss_reason(output: str, host: SshHost) -> str:
    """Return why ``ssh`` to ``host`` ended, as a sentence, from its error output."""
    if "Host key verification failed" in output or "REMOTE HOST IDENTIFICATION" in output:
        why = (
            f"the machine at {host.address} has not the host keys that {host.name} wrote down when it was made, and is "
            "not trusted: find out who changed them, and start the cluster again if no user did."
        )
    elif "Permission denied" in output:
        why = (
            f"{host.name} does not let {host.user} in with {host.private_key}: is that the key that the project knows?"
        )
    else:
        lines = [line for line in output.splitlines() if line.strip()]
        last = lines[-1][:_MAX_WHY_CHARS] if lines else "no output"
        why = f"ssh to {host.name} at {host.address} ended: {last}"
    return f"Cluster {host.cluster}: {why}"


def _words(host: SshHost, known_hosts: Path) -> list[str]:
    key = expanded(host.private_key, f"Cluster {host.cluster}: ssh_private_key")
    if not key.is_file():
        raise SshError(
            f"Cluster {host.cluster}: there is no SSH key {key} here: fetch it, or name another one as ssh_private_key."
        )
    options = [*_OPTIONS, f"HostKeyAlias={host.name}", f"UserKnownHostsFile={shlex.quote(str(known_hosts))}"]
    words = [word for option in options for word in ("-o", option)]
    return ["ssh", *words, "-i", str(key), "-p", _port(), "-l", host.user]


def _port() -> str:
    return os.environ.get(SSH_PORT_VARIABLE, "22")


MAX_LINE_BYTES: Final = 1 << 20
"""Limit of a displayed line: many machines may print one at the same time."""
_MAX_LOG_BYTES: Final = 64 * 1024


def bounded_lines(stream: IO[bytes], longest_bytes: int = MAX_LINE_BYTES) -> Iterator[str]:
    """Yield the lines of ``stream`` without their ends; of a longer line only its beginning, with a note."""
    while line := stream.readline(longest_bytes):
        is_whole = len(line) < longest_bytes or line.endswith(b"\n")
        text = line.decode(errors="replace").rstrip("\r\n")
        yield text if is_whole else f"{text} ... (cut: the line has {longest_bytes:,} bytes or more)"
        while not is_whole and (rest := stream.readline(_MAX_LOG_BYTES)):
            is_whole = rest.endswith(b"\n")


def end_of(log: IO[bytes]) -> str:
    """Return the end of a log in a file."""
    size = log.seek(0, 2)
    log.seek(max(0, size - _MAX_LOG_BYTES))
    return log.read(_MAX_LOG_BYTES).decode(errors="replace")


CONTAINER: Final = "ray_docker"
MAX_CONCURRENT_HOSTS: Final = 32
_GRACE_S: Final = 5.0
_ENDED_IN_ORDER: Final = re.compile(r"(?m)^Connection to \S+ closed\.\r?\n?")


class RunEnv(StrEnum):
    """Where on a machine a command runs; the words are those of ``ray exec``."""

    AUTO = "auto"
    """In the container, if it runs, else on the machine."""
    DOCKER = "docker"
    """In the container."""
    HOST = "host"
    """On the machine."""


@dataclass(frozen=True)
class HostResult:
    """How a command ended on one machine.

    Attributes:
        code: Its exit code; None if the machine was not reached, or the connection was lost.
        why: The reason if there is no exit code.
    """

    host: str
    code: int | None
    why: str = ""


def shell_line(words: Sequence[str]) -> str:
    """Return a line for a remote shell: a single word is such a line, several are a command and its arguments."""
    return words[0] if len(words) == 1 else shlex.join(words)


def remote_command(line: str | None, env: RunEnv, *, is_terminal: bool) -> str:
    """Return the command for a machine's shell that runs ``line``; None is an interactive shell."""
    what = f" -c {shlex.quote(line)}" if line is not None else ""
    here = f"exec bash{what or ' --login'}"
    there = f"exec docker exec {'-it' if is_terminal else '-i'} {CONTAINER} bash{what}"
    if env is RunEnv.AUTO:
        is_up = "docker inspect -f '{{.State.Running}}' " + CONTAINER + " 2>/dev/null"
        return f'if [ "$({is_up})" = true ]; then {there}; else {here}; fi'
    return there if env is RunEnv.DOCKER else here


def run_interactive(host: SshHost, command: str, *, is_terminal: bool) -> int:
    """Run ``command`` on ``host`` with this process's input, output and terminal; return its exit code.

    Raises:
        SshError: The machine was not reached, or the connection was lost.
    """
    with (
        tempfile.NamedTemporaryFile("rb", prefix="tradewind-ssh-") as log,
        ssh_to(host, "-E", log.name, "-t" if is_terminal else "-T") as words,
    ):
        ssh = start_ssh([*words, command])
        try:
            code = ssh.wait()
        finally:
            end_ssh(ssh)
        if (why := _why_lost(code, log, host)) is not None:
            raise SshError(why)
    return code


class HostRuns:
    """One command on several machines in parallel.

    Args:
        write: Called with the machine, one line of its output, and whether that was on standard error.
        is_held: Their standard input is empty, and stays open as long as this process lives.
        given: A file for their standard input.
        longest_bytes: Limit of a line; a longer one is cut, with a note.
    """

    def __init__(
        self,
        write: Callable[[SshHost, str, bool], None],
        *,
        is_held: bool = False,
        given: Path | None = None,
        longest_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        self._write = write
        self._longest_bytes = longest_bytes
        self._stdin = subprocess.PIPE if is_held else subprocess.DEVNULL
        self._given = given
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_over = False

    def run(self, hosts: Sequence[SshHost], command: str | Callable[[SshHost], str]) -> list[HostResult]:
        """Run the command on ``hosts``; return the results in their order. An interruption ends every ``ssh``."""
        command_of = command if callable(command) else lambda host: command
        pool = ThreadPoolExecutor(max(1, min(MAX_CONCURRENT_HOSTS, len(hosts))))
        try:
            return list(pool.map(lambda host: self._run(host, command_of(host)), hosts))
        except BaseException:
            self.end()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    @property
    def was_ended(self) -> bool:
        """Whether ``end`` was called."""
        return self._is_over

    def end(self) -> None:
        """End every ``ssh``, and start none any more. Thread-safe."""
        with self._lock:
            self._is_over = True
            running = list(self._running)
        for ssh in running:
            ssh.terminate()

    def _run(self, host: SshHost, command: str) -> HostResult:
        try:
            with (
                tempfile.NamedTemporaryFile("rb", prefix="tradewind-ssh-") as log,
                ssh_to(host, "-E", log.name, "-T") as words,
            ):
                code = self._run_words(host, [*words, command])
                why = _why_lost(code, log, host)
        except SshError as error:
            return HostResult(host.name, None, str(error))
        return HostResult(host.name, code) if why is None else HostResult(host.name, None, why)

    def _run_words(self, host: SshHost, words: Sequence[str]) -> int:
        pipe = subprocess.PIPE
        with ExitStack() as stack, self._lock:
            if self._is_over:
                return 0
            stdin = stack.enter_context(self._given.open("rb")).fileno() if self._given else self._stdin
            ssh = start_ssh(words, stdin=stdin, stdout=pipe, stderr=pipe)
            self._running.add(ssh)
        try:
            errors = threading.Thread(target=self._copy, args=(host, ssh.stderr, True))
            errors.start()
            self._copy(host, ssh.stdout, False)
            errors.join()
            return ssh.wait()
        finally:
            with self._lock:
                self._running.discard(ssh)
            end_ssh(ssh)

    def _copy(self, host: SshHost, stream: IO[bytes] | None, is_error: bool) -> None:
        assert stream is not None
        for line in bounded_lines(stream, self._longest_bytes):
            self._write(host, line, is_error)


def start_ssh(words: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start ``ssh`` with these words, and options of ``subprocess.Popen``.

    Raises:
        SshError: It is not installed.
    """
    try:
        return subprocess.Popen(words, **options)
    except FileNotFoundError:
        raise SshError("There is no ssh on this machine: install OpenSSH's client.") from None


def end_ssh(ssh: subprocess.Popen[Any]) -> None:
    """End ``ssh`` if it still runs, and close its streams."""
    if ssh.poll() is None:
        ssh.terminate()
        try:
            ssh.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            ssh.kill()
            ssh.wait()
    for stream in (ssh.stdin, ssh.stdout, ssh.stderr):
        if stream is not None:
            stream.close()


def _why_lost(code: int, log: IO[bytes], host: SshHost) -> str | None:
    """Return why the machine was not reached; None if the command ended there."""
    output = _ENDED_IN_ORDER.sub("", end_of(log))
    return connection_loss_reason(output, host) if code == EXIT_CONNECTION_LOST and output else None
