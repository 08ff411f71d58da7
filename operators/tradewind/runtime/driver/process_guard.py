"""A process never outlives who asked for it, nor the turn that it works in: not the driver, the actor or the Ray node.

Run as ``python -I -S process_guard.py [--watch PID]... [--term FD] [--with-input] -- COMMAND...`` (see ``guarded``) by
the step driver and by the host actor, in a session of its own. The guard starts the command, and ends everything that
descends from it, in whatever session that is, as soon as the command ends, the guard's parent dies, a watched process
dies, or SIGTERM arrives: SIGTERM first, SIGKILL after ``GRACE_S``. It then ends the way the command did, by the
same exit code or the same signal.

A command with a term (see ``term``) is ended when that is over, at once and by SIGKILL, whatever else goes on: who is
to prolong it may be frozen, and somebody else may soon do the same work. The guard's exit code is ``EXIT_DEADLINE``
then. A command that has ended by then is not one of these, so that a fault of its own is told as that.

Orphans become children of the guard (PR_SET_CHILD_SUBREAPER), so nobody escapes from it. If the guard itself is killed,
the kernel kills the command (PR_SET_PDEATHSIG), and the rest goes to the step driver, which adopts orphans too; if it
is frozen, the kernel kills it a little after the end of the term. The command's bond is to the parent *thread*: this
program has only one. Standard library only, and quick to start.
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
from typing import Final

GRACE_S: Final = 5.0
GRACE_VARIABLE: Final = "TRADEWIND_POD_GRACE_SECONDS"
POLL_S: Final = 0.25
"""How often the guard looks at the term and at the orphans that have ended."""
EXIT_DEADLINE: Final = 75
"""EX_TEMPFAIL of sysexits.h: what the command did does not count."""
TERM: Final = struct.Struct("=ddd")
"""The end of a term by the boot clock, when the kernel kills a guard that is frozen then, and the end again: a reader
that finds two ends has come between two writes."""
ENDED: Final = struct.Struct("=d")
"""What a guard says of itself: from when on its own end, by SIGKILL, is that of the term (see ``place_of_guard``)."""
_PLACES: Final = 4096
_KILL_S: Final = 10.0
_UNSEEN: Final = 10
_CLOCK_BOOTTIME: Final = 7
_TIMER_ABSTIME: Final = 1
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_libc: Final = ctypes.CDLL(None, use_errno=True)  # loaded before any fork


def guarded(
    command: Sequence[str], watch: Sequence[int], *, with_input: bool = False, term: int | None = None
) -> list[str]:
    """The command line that runs ``command`` under a guard; by file, so that no package is loaded on the way.

    Args:
        watch: Further processes with which the command ends.
        with_input: The command's standard input is that of the guard, not empty.
        term: The descriptor of a term, which the guard must inherit.
    """
    options = [word for pid in watch for word in ("--watch", str(pid))] + (["--with-input"] if with_input else [])
    options += [] if term is None else ["--term", str(term)]
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), *options, "--", *command]


@dataclass(frozen=True)
class GuardOptions:
    """What the command line of a guard says."""

    command: list[str]
    watch: tuple[int, ...] = ()
    with_input: bool = False
    term: int | None = None


def parse(arguments: Sequence[str]) -> GuardOptions:
    """Read the arguments that ``guarded`` makes."""
    split = list(arguments).index("--")
    options, command = iter(arguments[:split]), list(arguments[split + 1 :])
    watch, with_input, term = [], False, None
    for option in options:
        if option == "--with-input":
            with_input = True
        elif option == "--watch":
            watch.append(int(next(options)))
        else:
            term = int(next(options))
    return GuardOptions(command, tuple(watch), with_input, term)


def main(arguments: Sequence[str]) -> int:
    order = parse(arguments)
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # never end the group of whoever forgot to give us one of our own
    adopt_orphans()
    parent = os.getppid()
    stop_reader, stop_writer = os.pipe()
    os.set_blocking(stop_writer, False)
    signal.signal(signal.SIGTERM, lambda *_: os.write(stop_writer, b"."))
    guardians = [descriptor for pid in [parent, *order.watch] if (descriptor := _open(pid)) is not None]
    if len(guardians) <= len(order.watch) or os.getppid() != parent:
        return 143  # whoever asked for the command is gone already
    try:
        given = None if order.with_input else subprocess.DEVNULL
        command = _Command(subprocess.Popen(order.command, preexec_fn=_die_with_guard, stdin=given))
    except OSError as problem:
        print(f"The command cannot be run: {problem}", file=sys.stderr)
        return 127
    term = _SharedDeadline(order.term)
    _wait([command.descriptor, stop_reader, *guardians], term, command, math.inf)
    has_ended_itself = command.has_ended
    if not term.is_over:
        _end_politely(command, term, float(os.environ.get(GRACE_VARIABLE, GRACE_S)))
    kill_descendants(os.getpid(), command.reap)
    if has_ended_itself or not term.is_over:
        term.note_end(math.inf)
        return command.ended()
    term.note_end(-math.inf)
    term.say_why()  # not before: where the keeper is frozen, nobody may read it now
    return EXIT_DEADLINE


def place_of_guard(pid: int) -> int:
    """Where in the memory of a term the guard with this number says what its end means."""
    return TERM.size + ENDED.size * (pid % _PLACES)


def exit_like(code: int) -> None:
    """End this process as one ended whose ``subprocess`` return code is ``code``."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has dumped core already, if it should
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def boot_time() -> float:
    """Seconds since the machine was started, those in which it was suspended included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def suspended_s() -> float:
    """For how many seconds the machine was suspended since it was started."""
    return boot_time() - time.clock_gettime(time.CLOCK_MONOTONIC)


def adopt_orphans() -> None:
    """From now on what descends from this process stays so, whichever process between them dies."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def has_children() -> bool:
    """Whether this process has any, dead ones included that nobody has waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill_descendants(root: int, none_left: Callable[[], bool] | None = None) -> bool:
    """Kill whatever descends from the process ``root``, also what is born meanwhile; whether nothing is left.

    Args:
        none_left: Waits for our own, and says whether there are none. No listing says it of processes that each fork
            and end at once; without this they are taken for gone when some listings in a row have none.
    """
    deadline, unseen = time.monotonic() + _KILL_S, 0
    while time.monotonic() < deadline:
        unseen = 0 if _kill_seen(root) else unseen + 1
        if unseen >= _UNSEEN if none_left is None else none_left():
            return True
        time.sleep(0.002 if unseen else 0.01)
    return False


def descendants(root: int) -> list[int]:
    """The live processes that descend from ``root``."""
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
    """The kernel sends this process a signal at a given time, also if it or the whole machine is frozen then.

    SIGKILL ends it where it is. Any other one is the first that it sees when it thaws.
    """

    class _Event(ctypes.Structure):
        _fields_ = (
            ("value", ctypes.c_void_p),
            ("signal", ctypes.c_int),
            ("notify", ctypes.c_int),  # 0: by a signal to the process
            ("rest", ctypes.c_char * 48),
        )

    def __init__(self, number: int) -> None:
        self._timer = ctypes.c_void_p()
        event = self._Event(None, number, 0)
        self._works = _libc.timer_create(_CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(self._timer)) == 0

    def set(self, at: float) -> None:
        """Send it at ``at`` by the boot clock, not when it was said before; never at infinity.

        A kernel without such timers, as some sandboxes have, never does.
        """
        if self._works:
            whole = int(at) if math.isfinite(at) else 0
            nanoseconds = max(1, int((at - whole) * 1e9)) if math.isfinite(at) else 0  # all 0: never
            when = (ctypes.c_long * 4)(0, 0, whole, nanoseconds)  # no repetition
            _libc.timer_settime(self._timer, _TIMER_ABSTIME, when, None)


class _SharedDeadline:
    """The term as its keeper has last written it; without one it never ends."""

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
        end, killed_at, again = TERM.unpack(os.pread(self._descriptor, TERM.size, 0))
        if end == again and end != self._end and not self._was_over:
            self._end = end
            self._suspended_s = suspended_s()
            self._timer.set(killed_at)
            self.note_end(killed_at)
        left_s = self._end - boot_time()
        self._was_over |= left_s <= 0  # and stays so: what it was the end of is ended
        return left_s

    @property
    def is_over(self) -> bool:
        return self.left_s <= 0

    def note_end(self, at: float) -> None:
        """From then on the end of this guard is that of the term, and not one of the command or of its machine."""
        if self._descriptor is not None:
            os.pwrite(self._descriptor, ENDED.pack(at), place_of_guard(os.getpid()))

    def say_why(self) -> None:
        """Say why it is over, unless it was ended by its keeper, who says it."""
        if math.isfinite(self._end):
            slept_s = suspended_s() - self._suspended_s
            why = f"this machine was suspended for {slept_s:.0f} s"
            if slept_s < 1:
                why = "its keeper has not prolonged it: it is frozen, or cut off from the store"
            print(f"tradewind: the term of the lease is over, since {why}.", file=sys.stderr, flush=True)


class _Command:
    """The command; whatever else was left to us as an orphan is waited for on the way."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.descriptor = os.pidfd_open(process.pid)

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None or bool(select.select([self.descriptor], [], [], 0)[0])

    def reap(self) -> bool:
        """Wait for what has ended; whether nothing descends from us any more, since every orphan is our child."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self._process.pid:
                self._process.returncode = os.waitstatus_to_exitcode(status)

    def ended(self) -> int:
        """Its return code, once it has ended."""
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


def _wait(descriptors: Sequence[int], term: _SharedDeadline, command: _Command, timeout_s: float) -> None:
    """Until one of ``descriptors`` is ready, the term is over, or so many seconds have passed."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    deadline = boot_time() + timeout_s
    while (left_s := min(term.left_s, deadline - boot_time())) > 0:
        if poller.poll(math.ceil(min(left_s, POLL_S) * 1000)):
            return
        command.reap()


def _end_politely(command: _Command, term: _SharedDeadline, grace: float) -> None:
    """Ask all to end and wait for that. The guard is in the command's group and ignores the polite signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    _signal_all([pid for pid in descendants(os.getpid()) if _group(pid) != os.getpid()], signal.SIGTERM)
    deadline = boot_time() + grace
    _wait([command.descriptor], term, command, grace)
    while boot_time() < deadline and not term.is_over and descendants(os.getpid()):
        command.reap()
        time.sleep(0.02)


def _signal_all(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def _kill_seen(root: int) -> bool:
    """Kill each descendant of ``root`` as soon as it is seen, with its group; whether there was any.

    A group is killed in one, so also who forks all the time; in that of the root is the root.
    """
    seen = {root}
    ours = {_group(root), os.getpgrp()}
    for pid, parent, group in _processes():
        if parent in seen:
            seen.add(pid)
            _signal_all([pid], signal.SIGKILL)
            if group > 1 and group not in ours:
                _signal_all([-group], signal.SIGKILL)
    return len(seen) > 1


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _processes() -> Iterator[tuple[int, int, int]]:
    """Every live process, its parent and its group; nearly always a parent before its children."""
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
