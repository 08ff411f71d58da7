"""A process never outlives who asked for it: not the driver, nor the actor on a host, nor the Ray node under it.

Run as ``python -I -S process_guard.py [--watch PID]... [--with-input] -- COMMAND...`` (see ``guarded``) by the step
driver and by the host actor, in a session of its own. The guard starts the command, and ends its whole process group as
soon as the command ends, its parent dies, a watched process dies, or SIGTERM arrives: SIGTERM to the group first,
SIGKILL after ``GRACE_SECONDS``. It then ends the way the command did, by the same exit code or the same signal.

If the guard itself is killed, the kernel kills the command (PR_SET_PDEATHSIG). That bond is to the parent *thread*:
this program has only one. Standard library only, and quick to start.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

GRACE_SECONDS: Final = 5.0
GRACE_VARIABLE: Final = "TRADEWIND_POD_GRACE_SECONDS"
_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)  # loaded before any fork


def guarded(command: Sequence[str], watch: Sequence[int], *, with_input: bool = False) -> list[str]:
    """The command line that runs ``command`` under a guard; by file, so that no package is loaded on the way.

    The command's standard input is empty, or that of the guard if it is to be ``with_input``.
    """
    options = [word for pid in watch for word in ("--watch", str(pid))] + (["--with-input"] if with_input else [])
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), *options, "--", *command]


def main(arguments: Sequence[str]) -> int:
    watched, with_input, command = parse(arguments)
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # never end the group of whoever forgot to give us one of our own
    parent = os.getppid()
    grace = float(os.environ.get(GRACE_VARIABLE, GRACE_SECONDS))
    stop_reader, stop_writer = os.pipe()
    os.set_blocking(stop_writer, False)
    signal.signal(signal.SIGTERM, lambda *_: os.write(stop_writer, b"."))
    guardians = [descriptor for pid in [parent, *watched] if (descriptor := _open(pid)) is not None]
    if len(guardians) <= len(watched) or os.getppid() != parent:
        return 143  # whoever asked for the command is gone already
    try:
        given = None if with_input else subprocess.DEVNULL
        child = subprocess.Popen(command, preexec_fn=_die_with_guard, stdin=given)
    except OSError as problem:
        print(f"The command cannot be run: {problem}", file=sys.stderr)
        return 127
    child_descriptor = os.pidfd_open(child.pid)
    _wait_for_any([child_descriptor, stop_reader, *guardians], None)
    _end_group(child, child_descriptor, grace)
    return child.wait()


def parse(arguments: Sequence[str]) -> tuple[list[int], bool, list[str]]:
    """The pids to watch, whether the command gets our standard input, and the command."""
    split = list(arguments).index("--")
    options, command = list(arguments[:split]), list(arguments[split + 1 :])
    with_input = "--with-input" in options
    pids = [int(word) for word in options if word not in ("--watch", "--with-input")]
    return pids, with_input, command


def exit_like(code: int) -> None:
    """End this process as one ended whose ``subprocess`` return code is ``code``."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has dumped core already, if it should
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _die_with_guard() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_for_any(descriptors: Sequence[int], seconds: float | None) -> None:
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    poller.poll(None if seconds is None else max(0.0, seconds) * 1000)


def _end_group(child: subprocess.Popen[bytes], child_descriptor: int, grace: float) -> None:
    """End the command and what it started. The guard is in the same group and ignores the polite signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + grace
    _wait_for_any([child_descriptor], grace)
    while time.monotonic() < deadline and _others_in_group():
        time.sleep(0.02)
    for pid in _others_in_group():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _others_in_group() -> list[int]:
    """The live members of this process group except this process."""
    group, me = os.getpgrp(), os.getpid()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == me:
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                state, _, pgrp = stat.read().rpartition(b")")[2].split()[:3]
        except OSError:
            continue
        if int(pgrp) == group and state not in (b"Z", b"X"):
            found.append(int(name))
    return found


if __name__ == "__main__":
    exit_like(main(sys.argv[1:]))
