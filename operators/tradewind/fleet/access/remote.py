"""Commands on machines of a cluster: in the container that Ray runs in, or on the machine itself."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Final

from tradewind.fleet.access.bounded_lines import LONGEST_BYTES, bounded_lines, end_of
from tradewind.fleet.access.ssh import LOST, SshError, SshHost, ssh_to, why_lost

CONTAINER: Final = "ray_docker"
AT_ONCE: Final = 32
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
        code: What it ended with; None if the machine was not reached, or the connection was lost.
        why: Why that was.
    """

    host: str
    code: int | None
    why: str = ""


def shell_line(words: Sequence[str]) -> str:
    """What a shell there shall do: one word is a line for it, several are a command and its arguments as they are."""
    return words[0] if len(words) == 1 else shlex.join(words)


def remote_command(line: str | None, env: RunEnv, *, is_terminal: bool) -> str:
    """What is given to the shell of a machine to run ``line``; None is a shell for a person."""
    what = f" -c {shlex.quote(line)}" if line is not None else ""
    here = f"exec bash{what or ' --login'}"
    there = f"exec docker exec {'-it' if is_terminal else '-i'} {CONTAINER} bash{what}"
    if env is RunEnv.AUTO:
        is_up = "docker inspect -f '{{.State.Running}}' " + CONTAINER + " 2>/dev/null"
        return f'if [ "$({is_up})" = true ]; then {there}; else {here}; fi'
    return there if env is RunEnv.DOCKER else here


def run_here(host: SshHost, command: str, *, is_terminal: bool) -> int:
    """Run ``command`` on ``host`` with our own input, output and terminal; what it ended with.

    Raises:
        SshError: The machine was not reached, or the connection was lost.
    """
    with (
        tempfile.NamedTemporaryFile("rb", prefix="tradewind-ssh-") as log,
        ssh_to(host, "-E", log.name, "-t" if is_terminal else "-T") as words,
    ):
        ssh = _started([*words, command])
        try:
            code = ssh.wait()
        finally:
            _end(ssh)
        if (why := _why_lost(code, log, host)) is not None:
            raise SshError(why)
    return code


class HostRuns:
    """One command on several machines at once, without input.

    Args:
        write: Given the machine, one line of what it said, and whether that was on standard error.
        is_held: Their standard input stays open for as long as this process lives, and is empty before.
        given: A file that each gets as its standard input instead.
        longest_bytes: Of a line: a longer one is cut, and says so.
    """

    def __init__(
        self,
        write: Callable[[SshHost, str, bool], None],
        *,
        is_held: bool = False,
        given: Path | None = None,
        longest_bytes: int = LONGEST_BYTES,
    ) -> None:
        self._write = write
        self._longest_bytes = longest_bytes
        self._stdin = subprocess.PIPE if is_held else subprocess.DEVNULL
        self._given = given
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_over = False

    def run(self, hosts: Sequence[SshHost], command: str | Callable[[SshHost], str]) -> list[HostResult]:
        """How it ended on each, in their order. Interrupted, it ends every ``ssh`` first."""
        command_of = command if callable(command) else lambda host: command
        pool = ThreadPoolExecutor(max(1, min(AT_ONCE, len(hosts))))
        try:
            return list(pool.map(lambda host: self._run(host, command_of(host)), hosts))
        except BaseException:
            self.end()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    @property
    def was_ended(self) -> bool:
        """Whether somebody has asked for that."""
        return self._is_over

    def end(self) -> None:
        """End every ``ssh``, and have none started any more; any thread may ask for it."""
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
            ssh = _started(words, stdin=stdin, stdout=pipe, stderr=pipe)
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
            _end(ssh)

    def _copy(self, host: SshHost, stream: IO[bytes] | None, is_error: bool) -> None:
        assert stream is not None
        for line in bounded_lines(stream, self._longest_bytes):
            self._write(host, line, is_error)


def _started(words: Sequence[str], **streams: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(words, **streams)  # type: ignore[call-overload,no-any-return]
    except FileNotFoundError:
        raise SshError("There is no ssh on this machine: install OpenSSH's client.") from None


def _end(ssh: subprocess.Popen[bytes]) -> None:
    if ssh.poll() is None:
        ssh.terminate()
        ssh.wait()
    for stream in (ssh.stdin, ssh.stdout, ssh.stderr):
        if stream is not None:
            stream.close()


def _why_lost(code: int, log: IO[bytes], host: SshHost) -> str | None:
    """Why the machine was not reached; None if the command ended there, with whatever it did."""
    said = _ENDED_IN_ORDER.sub("", end_of(log))
    return why_lost(said, host) if code == LOST and said else None
