"""Process guard: a command never outlives its driver, its actor, its Ray node or the lease of its attempt.

The step driver and the host actor run ``python -I -S process_guard.py [--watch PID]... [--deadline FD] [--with-input]
-- COMMAND...`` (see ``guard_command``) in a session of its own. The guard starts the command. It ends the command and
all its descendants, in any session, when the command ends, the guard's parent or a watched process dies, or SIGTERM
arrives: SIGTERM first, SIGKILL after ``GRACE_S``. It then exits as the command did, by the same code or signal.

At its lease deadline (see ``fencing``) the guard kills the command at once by SIGKILL and exits with ``EXIT_DEADLINE``.
The lease owner may be frozen then, and another attempt may soon start. A command that has ended before keeps its own
exit code, so that its failure is reported as one.

Orphans become children of the guard (PR_SET_CHILD_SUBREAPER), so no descendant escapes. If the guard is killed, the
kernel kills the command (PR_SET_PDEATHSIG) and the step driver adopts the rest. If the guard is frozen, the kernel
kills it shortly after the deadline. PR_SET_PDEATHSIG follows the parent *thread*; this program has only one. It needs
only the standard library and starts quickly.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

GRACE_S: Final = 5.0
GRACE_VARIABLE: Final = "TRADEWIND_POD_GRACE_SECONDS"
POLL_S: Final = 0.25
"""How often the guard reads the deadline and reaps orphans."""
EXIT_DEADLINE: Final = 75
"""EX_TEMPFAIL of sysexits.h: the attempt does not count."""
DEADLINE: Final = struct.Struct("=ddd")
"""The deadline by the boot clock, the time when the kernel kills a frozen guard, and the deadline again: if the two
deadlines differ, the reader came between two writes."""
ENDED: Final = struct.Struct("=d")
"""A guard's note: the time from which its own end by SIGKILL is due to the deadline (see ``guard_offset``)."""
_PLACES: Final = 4096
_KILL_S: Final = 10.0
_UNSEEN: Final = 10
_CLOCK_BOOTTIME: Final = 7
_TIMER_ABSTIME: Final = 1
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_libc: Final = ctypes.CDLL(None, use_errno=True)  # loaded before any fork


def guard_command(
    command: Sequence[str], watch: Sequence[int], *, with_input: bool = False, deadline: int | None = None
) -> list[str]:
    """Return the command line that runs ``command`` under a guard; it names this file, so that no package is loaded.

    Args:
        watch: Further processes with which the command ends.
        with_input: The command's standard input is that of the guard, not empty.
        deadline: The descriptor of a lease deadline, which the guard must inherit.
    """
    options = [word for pid in watch for word in ("--watch", str(pid))] + (["--with-input"] if with_input else [])
    options += [] if deadline is None else ["--deadline", str(deadline)]
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), *options, "--", *command]


@dataclass(frozen=True)
class GuardOptions:
    """A guard's command line, parsed."""

    command: list[str]
    watch: tuple[int, ...] = ()
    with_input: bool = False
    deadline: int | None = None


def parse(arguments: Sequence[str]) -> GuardOptions:
    """Read the arguments that ``guard_command`` makes."""
    split = list(arguments).index("--")
    options, command = iter(arguments[:split]), list(arguments[split + 1 :])
    watch, with_input, deadline = [], False, None
    for option in options:
        if option == "--with-input":
            with_input = True
        elif option == "--watch":
            watch.append(int(next(options)))
        else:
            deadline = int(next(options))
    return GuardOptions(command, tuple(watch), with_input, deadline)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # never kill the group of a caller that gave the guard none of its own
    adopt_orphans()
    parent = os.getppid()
    stop_reader, stop_writer = os.pipe()
    os.set_blocking(stop_writer, False)
    signal.signal(signal.SIGTERM, lambda *_: os.write(stop_writer, b"."))
    watched = [descriptor for pid in [parent, *options.watch] if (descriptor := _open(pid)) is not None]
    if len(watched) <= len(options.watch) or os.getppid() != parent:
        return 143  # the parent or a watched process is gone already
    try:
        stdin = None if options.with_input else subprocess.DEVNULL
        command = _Command(subprocess.Popen(options.command, preexec_fn=_die_with_guard, stdin=stdin))
    except OSError as problem:
        print(f"The command cannot be run: {problem}", file=sys.stderr)
        return 127
    deadline = _SharedDeadline(options.deadline)
    _wait([command.descriptor, stop_reader, *watched], deadline, command, math.inf)
    has_ended_itself = command.has_ended
    if not deadline.is_over:
        _shut_down(command, deadline, float(os.environ.get(GRACE_VARIABLE, GRACE_S)))
    kill_descendants(os.getpid(), command.reap)
    if has_ended_itself or not deadline.is_over:
        deadline.note_end(math.inf)
        return command.wait()
    deadline.note_end(-math.inf)
    deadline.print_reason()  # last: while the lease owner is frozen, no process may read the pipe
    return EXIT_DEADLINE


def guard_offset(pid: int) -> int:
    """Return the offset in a deadline's memory of the note of the guard with this process ID."""
    return DEADLINE.size + ENDED.size * (pid % _PLACES)


def exit_like(code: int) -> NoReturn:
    """End this process like one whose ``subprocess`` return code is ``code``."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has dumped core already, if it may
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def boot_time() -> float:
    """Seconds since the machine was started, including those in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def suspended_s() -> float:
    """Seconds for which the machine was suspended since it was started."""
    return boot_time() - time.clock_gettime(time.CLOCK_MONOTONIC)


def adopt_orphans() -> None:
    """Keep all descendants of this process its own, also when a process between them dies."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def has_children() -> bool:
    """Whether this process has children, including dead ones that were not reaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill_descendants(root: int, none_left: Callable[[], bool] | None = None) -> bool:
    """Kill all descendants of the process ``root``, also those born meanwhile; return whether none is left.

    Args:
        none_left: Reaps this process's children and returns whether there are none. A listing can miss processes that
            each fork and end at once; without this function, several empty listings in a row count as none.
    """
    give_up_at, unseen = time.monotonic() + _KILL_S, 0
    while time.monotonic() < give_up_at:
        unseen = 0 if _kill_seen(root) else unseen + 1
        if unseen >= _UNSEEN if none_left is None else none_left():
            return True
        time.sleep(0.002 if unseen else 0.01)
    return False


def descendants(root: int) -> list[int]:
    """Return the live processes that descend from ``root``."""
    children: dict[int, list[int]] = {}
    for pid, parent, _ in _processes():
        children.setdefault(parent, []).append(pid)
    found, left = [], [root]
    while left:
        born = children.get(left.pop(), [])
        found += born
        left += born
    return found


class KernelTimer:
    """A signal that the kernel sends this process at a given time, even if the process or the machine is frozen then.

    SIGKILL ends a frozen process at once. Any other signal arrives first when the process thaws.
    """

    class _Event(ctypes.Structure):
        _fields_ = (
            ("value", ctypes.c_void_p),
            ("signal", ctypes.c_int),
            ("notify", ctypes.c_int),  # 0: signal the process
            ("rest", ctypes.c_char * 48),
        )

    def __init__(self, number: int) -> None:
        self._timer = ctypes.c_void_p()
        event = self._Event(None, number, 0)
        self._works = _libc.timer_create(_CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(self._timer)) == 0

    def set(self, at: float) -> None:
        """Move the signal to ``at`` by the boot clock; infinity cancels it.

        A kernel without such timers, as in some sandboxes, never sends it.
        """
        if self._works:
            whole = int(at) if math.isfinite(at) else 0
            nanoseconds = max(1, int((at - whole) * 1e9)) if math.isfinite(at) else 0  # all 0: never
            when = (ctypes.c_long * 4)(0, 0, whole, nanoseconds)  # no repetition
            _libc.timer_settime(self._timer, _TIMER_ABSTIME, when, None)


class _SharedDeadline:
    """The deadline that the lease owner last wrote; without a descriptor there is none."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._timer = None if descriptor is None else KernelTimer(signal.SIGKILL)
        self._end = math.inf
        self._was_over = False
        self._suspended_s = suspended_s()
        self.note_end(math.inf)

    @property
    def left_s(self) -> float:
        if self._descriptor is None or self._timer is None:
            return math.inf
        end, killed_at, again = DEADLINE.unpack(os.pread(self._descriptor, DEADLINE.size, 0))
        if end == again and end != self._end and not self._was_over:
            self._end = end
            self._suspended_s = suspended_s()
            self._timer.set(killed_at)
            self.note_end(killed_at)
        left_s = self._end - boot_time()
        self._was_over |= left_s <= 0  # for good: the processes are killed
        return left_s

    @property
    def is_over(self) -> bool:
        return self.left_s <= 0

    def note_end(self, at: float) -> None:
        """Note that from ``at`` on, the deadline is what ends this guard, not its command or its machine."""
        if self._descriptor is not None:
            os.pwrite(self._descriptor, ENDED.pack(at), guard_offset(os.getpid()))

    def print_reason(self) -> None:
        """Print why the deadline passed, unless the lease owner moved it to now and prints the reason itself."""
        if math.isfinite(self._end):
            slept_s = suspended_s() - self._suspended_s
            why = f"this machine was suspended for {slept_s:.0f} s"
            if slept_s < 1:
                why = "its owner did not renew it: it is frozen, or cannot reach the store"
            print(f"tradewind: the lease deadline has passed, since {why}.", file=sys.stderr, flush=True)


class _Command:
    """The command. Waiting for it reaps orphans too."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.descriptor = os.pidfd_open(process.pid)

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None or bool(select.select([self.descriptor], [], [], 0)[0])

    def reap(self) -> bool:
        """Reap ended children; return whether no descendant is left, since every orphan is a child of this process."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self._process.pid:
                self._process.returncode = os.waitstatus_to_exitcode(status)

    def wait(self) -> int:
        """Wait for the end of the command; return its return code."""
        while self._process.returncode is None:
            self.reap()
            time.sleep(0.01)
        return self._process.returncode


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _die_with_guard() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait(descriptors: Sequence[int], deadline: _SharedDeadline, command: _Command, timeout_s: float) -> None:
    """Wait until one of ``descriptors`` is ready, the deadline has passed, or for ``timeout_s``."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    give_up_at = boot_time() + timeout_s
    while (left_s := min(deadline.left_s, give_up_at - boot_time())) > 0:
        if poller.poll(math.ceil(min(left_s, POLL_S) * 1000)):
            return
        command.reap()


def _shut_down(command: _Command, deadline: _SharedDeadline, grace_s: float) -> None:
    """Send SIGTERM to all and wait for their end. The guard is in the command's group and ignores the signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    _signal_all([pid for pid in descendants(os.getpid()) if _group(pid) != os.getpid()], signal.SIGTERM)
    give_up_at = boot_time() + grace_s
    _wait([command.descriptor], deadline, command, grace_s)
    while boot_time() < give_up_at and not deadline.is_over and descendants(os.getpid()):
        command.reap()
        time.sleep(0.02)


def _signal_all(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def _kill_seen(root: int) -> bool:
    """Kill each descendant of ``root`` when it is listed, with its group; return whether there was any.

    One signal kills a whole group, also processes that fork all the time. The root's own group is spared.
    """
    seen = {root}
    spared = {_group(root), os.getpgrp()}
    for pid, parent, group in _processes():
        if parent in seen:
            seen.add(pid)
            _signal_all([pid], signal.SIGKILL)
            if group > 1 and group not in spared:
                _signal_all([-group], signal.SIGKILL)
    return len(seen) > 1


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _processes() -> Iterator[tuple[int, int, int]]:
    """Yield every live process, its parent and its group; nearly always a parent before its children."""
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                state, parent, group = stat.read().rpartition(b")")[2].split()[:3]
        except OSError:
            continue
        if state not in (b"Z", b"X"):
            yield int(name), int(parent), int(group)


if __name__ == "__main__":
    exit_like(main(sys.argv[1:]))
