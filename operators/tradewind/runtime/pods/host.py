"""The actor on each host of a slice: it starts one fresh process, passes on what it prints, and says how it ended.

The process itself is in the hands of ``process_guard``, which ends it when this actor or its Ray node dies. The whole
output goes to the host's log file; the driver gets it in portions (``poll``), from hosts other than 0 only the end.
"""

from __future__ import annotations

import glob
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Final, cast

import ray

from tradewind.runtime.pod_env import HostFacts, LineSplitter, process_env
from tradewind.runtime.process_guard import GRACE_SECONDS, guarded
from tradewind.runtime.stored_log import StoredLog

LAST_LINES: Final = 50
_MOST_LINES: Final = 10_000  # kept for a driver that does not fetch them
_DRAIN_SECONDS: Final = 2.0
_LOCKFILE: Final = "/tmp/libtpu_lockfile"


@dataclass(frozen=True)
class Launch:
    """What one host is to run, and as which of how many."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)  # secrets may be in it
    rank: int
    num_processes: int
    coordinator: str
    log_dir: str | None


@dataclass(frozen=True)
class Report:
    """What happened on a host since the last report."""

    lines: tuple[str, ...]
    exit_code: int | None
    """None while the process runs, and for ever if the Ray node died."""
    lost: bool = False
    """The Ray node under this actor is dead."""


class PodHost:
    """One per host; its methods may run at the same time in different threads."""

    def __init__(self) -> None:
        self._raylet = os.getppid()
        self._changed = threading.Condition()
        self._lines: deque[str] = deque()
        self._left_out = 0
        self._keep = LAST_LINES
        self._exit_code: int | None = None
        self._over = False
        self._guard: subprocess.Popen[bytes] | None = None
        self._log: StoredLog | None = None

    def facts(self) -> HostFacts:
        context = ray.get_runtime_context()
        return HostFacts(
            node_id=context.get_node_id(),
            ip=ray.util.get_node_ip_address(),
            labels=cast(dict[str, str], context.get_node_labels()),  # annotated wrongly in Ray
            has_tpu=has_tpu(),
        )

    def free_port(self) -> int:
        with socket.socket() as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    def start(self, launch: Launch) -> None:
        """Start the process; returns once it exists."""
        real = has_tpu()
        if real:
            with suppress(FileNotFoundError):
                os.unlink(_LOCKFILE)  # left behind by a killed process, it blocks the next one (jax#10192)
        env = process_env(
            os.environ,
            launch.env,
            rank=launch.rank,
            num_processes=launch.num_processes,
            coordinator=launch.coordinator,
            has_tpu=real,
        )
        self._keep = _MOST_LINES if launch.rank == 0 else LAST_LINES
        self._log = StoredLog(launch.log_dir, f"host-{launch.rank}.log")
        self._guard = subprocess.Popen(
            guarded(launch.command, watch=[self._raylet]),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        threading.Thread(target=self._pump, args=(self._guard,), daemon=True).start()

    def poll(self, hold_seconds: float, *, eager: bool) -> Report:
        """What is new: at once when the process has ended, or when there are lines (``eager``), else after a while."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or (eager and bool(self._lines)), timeout=hold_seconds)
            return self._take()

    def end(self) -> Report:
        """End the process's whole group, if it still runs, and bring its log home."""
        guard = self._guard
        if guard is not None:
            guard.terminate()
            with self._changed:
                if not self._changed.wait_for(lambda: self._over, timeout=GRACE_SECONDS + 2 * _DRAIN_SECONDS):
                    _kill_group(guard)
                    self._changed.wait_for(lambda: self._over, timeout=_DRAIN_SECONDS)
        if self._log is not None:
            self._log.bring_home()
        with self._changed:
            return self._take()

    def _take(self) -> Report:
        lines = list(self._lines)
        if self._left_out and self._keep == _MOST_LINES:
            lines.insert(0, f"[{self._left_out} lines left out here; they are in the host's log]")
        self._lines.clear()
        self._left_out = 0
        return Report(tuple(lines), self._exit_code, lost=self._over and self._exit_code is None)

    def _pump(self, guard: subprocess.Popen[bytes]) -> None:
        """Move the output to the log and to ``poll`` until the process has ended, and tell how."""
        assert guard.stdout is not None and self._log is not None
        splitter = LineSplitter()
        for data in _read_until_ended(guard.stdout, guard):
            self._log.write(data)
            self._add(splitter.feed(data))
        self._add(splitter.end())
        code = guard.wait()
        _kill_group(guard)  # only if the guard itself was killed is anyone left
        self._log.close()
        with self._changed:
            node_died = os.getppid() != self._raylet
            self._exit_code = None if node_died else code
            self._over = True
            self._changed.notify_all()

    def _add(self, lines: Sequence[str]) -> None:
        if not lines:
            return
        with self._changed:
            self._lines.extend(lines)
            while len(self._lines) > self._keep:
                self._lines.popleft()
                self._left_out += 1
            self._changed.notify_all()


def has_tpu() -> bool:
    """Whether this machine has TPU chips."""
    return any(not os.path.isdir(device) for device in glob.glob("/dev/accel*")) or bool(glob.glob("/dev/vfio/[0-9]*"))


def _read_until_ended(output: IO[bytes], guard: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """The output until its end; soon after the guard's end even if a stray process still holds the pipe."""
    descriptor = output.fileno()
    poller = select.poll()
    poller.register(descriptor, select.POLLIN | select.POLLHUP)
    guard_end = os.pidfd_open(guard.pid)
    poller.register(guard_end, select.POLLIN)
    deadline: float | None = None
    try:
        while deadline is None or time.monotonic() < deadline:
            ready = {one for one, _ in poller.poll(None if deadline is None else _DRAIN_SECONDS * 1000)}
            if guard_end in ready and deadline is None:
                deadline = time.monotonic() + _DRAIN_SECONDS
                poller.unregister(guard_end)
            if descriptor in ready:
                data = os.read(descriptor, 65536)
                if not data:
                    return
                yield data
    finally:
        os.close(guard_end)


def _kill_group(guard: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(guard.pid, signal.SIGKILL)
