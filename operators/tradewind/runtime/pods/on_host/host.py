"""The actor on each host of a pod: it starts one fresh process, reports on it, and kills it without its driver.

The driver polls all the time (``poll``). After a minute without a poll it is dead or unreachable, and another driver
may use the host next, so the actor kills the process. The actor also watches for Google Cloud's notice of a preemption
and makes Ray drain the node then.

A process guard (``process_guard``) kills the process when the actor or its Ray node dies. All output goes to the host's
log. The driver gets the output of the first host in portions, of other hosts only the end. Both are without the values
of the secrets that the process's environment names.
"""

from __future__ import annotations

import glob
import json
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Final

import ray

from tradewind.cloud_tpu import instance_metadata
from tradewind.cloud_tpu.slice_types import SIMULATED_VARIABLE
from tradewind.machine import boot_time
from tradewind.runtime.driver.fencing import LeaseDeadline
from tradewind.runtime.driver.log_capture import StoredLog
from tradewind.runtime.driver.process_guard import GRACE_S, guard_command, kill_descendants
from tradewind.runtime.pods.on_host.heartbeat import HEARTBEAT_VARIABLE, Beat, BeatPage
from tradewind.runtime.pods.on_host.orphans import (
    MARK,
    chip_devices,
    kill_marked,
    kill_orphans,
    process_mark,
    remove_lockfile,
)
from tradewind.runtime.pods.on_host.preemption_notice import NOTICE_VARIABLE, Notice, write_notice
from tradewind.runtime.pods.on_host.standby_process import CHANGING, stable_env, standby_command
from tradewind.runtime.pods.process_env import Accelerator, HostProbe, LineSplitter, ProcessRank, process_env, rank_env
from tradewind.serialization.masking import Masker, StreamMasker

LAST_LINES: Final = 200
MAX_BUFFERED_LINES: Final = 10_000  # for a driver that does not fetch them
DRIVER_TIMEOUT_S: Final = 60.0
_OTHER_GPUS: Final = ("/dev/kfd", "/dev/dxg")
"""Devices of AMD's GPUs, and of GPUs in WSL."""
_DRAIN_S: Final = 2.0


class HostProcess:
    """One process on a host; it starts at once. A standby process continues when it gets a line.

    ``changed`` is notified when there are lines, and at the end.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log: StoredLog,
        *,
        keep_lines: int,
        watch: int,
        changed: threading.Condition,
        deadline: LeaseDeadline,
        is_standby: bool = False,
    ) -> None:
        self._keep = keep_lines
        self._log = log
        self._raylet = watch
        self._changed = changed
        self._deadline = deadline
        self._masked = StreamMasker(Masker.of_environment(env))
        self._lines: deque[str] = deque()
        self._left_out = 0
        self.exit_code: int | None = None
        """None while it runs, and for ever if the Ray node died."""
        self.is_over = False
        self.was_ended = False
        """The actor killed it, so its exit code means nothing."""
        self._guard = subprocess.Popen(
            guard_command(command, watch=[watch], with_input=is_standby, deadline=deadline.descriptor),
            env=dict(env),
            stdin=subprocess.PIPE if is_standby else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[deadline.descriptor],
        )
        threading.Thread(target=self._pump, daemon=True, name="output").start()

    @property
    def has_lines(self) -> bool:
        return bool(self._lines)

    def go(self, line: str, keep_lines: int, log: StoredLog) -> bool:
        """Let a standby process continue; return whether it was alive."""
        assert self._guard.stdin is not None
        with self._changed:
            self._keep, self._log = keep_lines, log
        try:
            self._guard.stdin.write(line.encode() + b"\n")
            self._guard.stdin.close()
        except OSError:
            return False
        return not self.is_over

    def take_lines(self) -> tuple[str, ...]:
        """Return the lines since the last call; the caller holds ``changed``."""
        lines = list(self._lines)
        if self._left_out and self._keep == MAX_BUFFERED_LINES:
            lines.insert(0, f"[{self._left_out} lines left out here; they are in the host's log]")
        self._lines.clear()
        self._left_out = 0
        return tuple(lines)

    def kill(self) -> None:
        """Kill the process and all its descendants at once."""
        self._mark_ended()
        kill_descendants(self._guard.pid)
        _kill_group(self._guard)

    def end(self) -> None:
        """Shut the whole group down; the guard kills it after its grace period."""
        self._mark_ended()
        self._guard.terminate()
        if not self.wait(GRACE_S + 2 * _DRAIN_S):
            _kill_group(self._guard)
            self.wait(_DRAIN_S)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; return whether it has ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_over, timeout=timeout_s)

    def upload_log(self) -> None:
        self._log.upload()

    def _mark_ended(self) -> None:
        with self._changed:
            self.was_ended = self.was_ended or not self.is_over

    def _pump(self) -> None:
        """Move the output to the log and the buffer until the process has ended, then note its exit code."""
        guard = self._guard
        assert guard.stdout is not None
        splitter = LineSplitter()
        for data in _read_until_ended(guard.stdout, guard):
            self._keep_output(self._masked.feed(data), splitter)
        self._keep_output(self._masked.end(), splitter)
        self._add(splitter.end())
        code = guard.wait()
        _kill_group(guard)  # processes are left only if the guard itself was killed
        self._log.close()
        with self._changed:
            node_died = os.getppid() != self._raylet
            self.exit_code = None if node_died else code
            self.is_over = True
            self.was_ended = self.was_ended or self._deadline.has_ended(guard.pid)
            self._changed.notify_all()

    def _keep_output(self, data: bytes, splitter: LineSplitter) -> None:
        self._log.write(data)
        self._add(splitter.feed(data))

    def _add(self, lines: Sequence[str]) -> None:
        if not lines:
            return
        with self._changed:
            self._lines.extend(lines)
            while len(self._lines) > self._keep:
                self._lines.popleft()
                self._left_out += 1
            self._changed.notify_all()


def _read_until_ended(output: IO[bytes], guard: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Yield the output until its end, or until soon after the guard's end if an orphan still holds the pipe."""
    descriptor = output.fileno()
    poller = select.poll()
    poller.register(descriptor, select.POLLIN | select.POLLHUP)
    guard_end = os.pidfd_open(guard.pid)
    poller.register(guard_end, select.POLLIN)
    end_at: float | None = None
    try:
        while end_at is None or time.monotonic() < end_at:
            ready = {descriptor for descriptor, _ in poller.poll(None if end_at is None else _DRAIN_S * 1000)}
            if guard_end in ready and end_at is None:
                end_at = time.monotonic() + _DRAIN_S
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


@dataclass(frozen=True)
class Launch:
    """The command of one host, and its rank."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)  # secrets may be in it
    place: ProcessRank
    log_dir: str | None
    log_name: str = "host-0.log"
    is_tpu: bool = True
    has_accelerators: bool = True
    """Whether the group requested TPU chips or GPUs."""
    renewed_at: float | None = None
    """When the driver's lease was last renewed, on this host's boot clock; None without a lease."""


@dataclass(frozen=True)
class StandbySpec:
    """The later command of a standby process, without the variables that differ between two starts."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class Report:
    """Changes on a host since the last report."""

    lines: tuple[str, ...] = ()
    exit_code: int | None = None
    """None while the process runs, and for ever if the Ray node died."""
    is_node_dead: bool = False
    """The Ray node under this actor is dead."""
    was_ended: bool = False
    """The actor or the guard killed the process before it ended by itself."""
    beat: Beat | None = None
    now: float = 0.0
    """This host's boot clock, which the beat's times use."""
    preempted_by: float | None = None
    """When the machine goes (epoch seconds), if Google Cloud has announced it."""


class PodHost:
    """The actor, one per host; its methods may run at the same time in different threads."""

    def __init__(self, driver_timeout_s: float = DRIVER_TIMEOUT_S) -> None:
        self._raylet = os.getppid()
        self._changed = threading.Condition()
        self._process: HostProcess | None = None
        self._standby: HostProcess | None = None
        self._standby_spec: StandbySpec | None = None
        self._folder: str | None = None
        self._beats: BeatPage | None = None
        self._notice: Notice | None = None
        self._renewed_at = -math.inf
        self._deadline = LeaseDeadline()
        self._driver_timeout_s = driver_timeout_s
        self._killing = threading.Lock()
        self._preempted_by: float | None = None
        self._problems: list[str] = []
        self._ip = str(ray.util.get_node_ip_address()) if ray.is_initialized() else "127.0.0.1"
        self._mark = process_mark(self._ip, os.getpid())
        threading.Thread(target=self._watch_driver, daemon=True, name="watch-driver").start()
        if os.environ.get(instance_metadata.HOST_VARIABLE) or chip_devices():
            instance_metadata.watch_end(self._expect_end)

    def probe(self) -> HostProbe:
        with socket.socket() as free:
            free.bind(("", 0))
            return HostProbe(self._ip, accelerator(), int(free.getsockname()[1]), boot_time())

    def start(self, launch: Launch) -> None:
        """Start the process; return once it exists."""
        self._extend_deadline(launch.renewed_at)
        problem = self._clear_host(launch)
        own_env = {**rank_env(launch.place, is_tpu=launch.is_tpu), **self._own_env()}
        log = StoredLog(launch.log_dir, launch.log_name)
        if problem is not None:
            self._problems.append(problem)
            log.write(f"{problem}\n".encode())
        keep_lines = MAX_BUFFERED_LINES if launch.place.rank == 0 else LAST_LINES
        if self._take_standby(launch, own_env, keep_lines, log):
            return
        kind = accelerator() if launch.has_accelerators else Accelerator.NONE
        env = process_env(os.environ, launch.env, kind, keep_threads=not launch.is_tpu, chips=len(chip_devices()))
        self._process = HostProcess(
            launch.command,
            {**env, **own_env},
            log,
            keep_lines=keep_lines,
            watch=self._raylet,
            changed=self._changed,
            deadline=self._deadline,
        )

    def start_standby(self, wanted: StandbySpec) -> None:
        """Start a standby process, which does its imports and waits for ``start``."""
        env = process_env(os.environ, wanted.env, accelerator(), chips=len(chip_devices())) | {MARK: self._mark}
        self._standby_spec = wanted
        self._standby = HostProcess(
            standby_command(wanted.command),
            env,
            StoredLog(None, ""),
            keep_lines=LAST_LINES,
            watch=self._raylet,
            changed=self._changed,
            deadline=self._deadline,
            is_standby=True,
        )

    def poll(self, hold_s: float, *, eager: bool, renewed_at: float | None = None) -> Report:
        """Return a report: at once when the process has ended or (``eager``) has lines, otherwise after ``hold_s``.

        ``renewed_at`` is as in ``Launch``: the deadline of the process counts from it, not from this call.
        """
        self._extend_deadline(renewed_at)
        with self._changed:
            self._changed.wait_for(lambda: self._has_news(eager), timeout=hold_s)
            self._extend_deadline(renewed_at)
            return self._report()

    def notify(self, notice: Notice) -> None:
        """Write the notice for the process, also for one that has yet to start."""
        self._notice = notice
        if self._folder is not None:
            write_notice(os.path.join(self._folder, "notice.json"), notice)

    def kill(self) -> Report:
        """Kill the process's whole group at once, and all other processes that it started."""
        with self._killing:  # a second call finds no process left
            if self._process is not None:
                self._process.kill()
                kill_marked(self._mark)
                self._process.wait(DRIVER_TIMEOUT_S)
        with self._changed:
            return self._report()

    def end(self, *, gracefully: bool = True) -> Report:
        """End the process, and upload the log."""
        if self._process is not None:
            if gracefully:
                self._process.end()
            self.kill()
            self._process.upload_log()
        if self._beats is not None:
            self._beats.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        with self._changed:
            return self._report()

    def _has_news(self, eager: bool) -> bool:
        process = self._process
        return process is None or process.is_over or (eager and process.has_lines)

    def _report(self) -> Report:
        process = self._process
        if process is None:
            return Report(now=boot_time(), preempted_by=self._preempted_by)
        problems, self._problems = self._problems, []
        return Report(
            (*problems, *process.take_lines()),
            process.exit_code,
            is_node_dead=process.is_over and process.exit_code is None,
            was_ended=process.was_ended,
            beat=None if self._beats is None else self._beats.read(),
            now=boot_time(),
            preempted_by=self._preempted_by,
        )

    def _clear_host(self, launch: Launch) -> str | None:
        """Kill orphans of earlier pods and remove libtpu's lock file; return why that file stays, if so."""
        orphans = kill_orphans(self._ip, holds_chips=launch.is_tpu and bool(chip_devices()))
        if orphans:
            print(f"Ended {len(orphans)} processes that an earlier pod left on this host.", flush=True)
        return remove_lockfile() if launch.is_tpu else None

    def _take_standby(self, launch: Launch, own_env: Mapping[str, str], keep_lines: int, log: StoredLog) -> bool:
        """Let the standby process continue with this launch; return False if there is none that fits."""
        standby, self._standby = self._standby, None
        if standby is None:
            return False
        if self._standby_spec == StandbySpec(launch.command, stable_env(launch.env)):
            changing = {name: value for name, value in launch.env.items() if name in CHANGING}
            if standby.go(json.dumps({**changing, **own_env}), keep_lines, log):
                self._process = standby
                return True
        standby.kill()
        return False

    def _own_env(self) -> dict[str, str]:
        self._beats = BeatPage()
        node = ray._private.worker._global_node
        session = None if node is None else str(node.get_session_dir_path())  # Ray removes it with the node
        self._folder = tempfile.mkdtemp(prefix="pod-", dir=session)
        with suppress(OSError):  # only for users who inspect the host
            os.symlink(self._beats.path, os.path.join(self._folder, "heartbeat.json"))
        if self._notice is not None:
            self.notify(self._notice)
        return {
            MARK: self._mark,
            HEARTBEAT_VARIABLE: self._beats.path,
            NOTICE_VARIABLE: os.path.join(self._folder, "notice.json"),
        }

    def _extend_deadline(self, renewed_at: float | None) -> None:
        """Let the process run until the lease renewal, or without a lease the driver's last call, is too old."""
        self._renewed_at = max(self._renewed_at, boot_time() if renewed_at is None else renewed_at)
        fenced_at = self._renewed_at + self._driver_timeout_s
        self._deadline.set(fenced_at, fenced_at + self._driver_timeout_s / 4)  # as ``killed_s`` of a lease

    def _watch_driver(self) -> None:
        while True:
            time.sleep(min(1.0, self._driver_timeout_s / 10))
            process = self._process
            if process is not None and not process.is_over and self._deadline.is_over:
                self.kill()

    def _expect_end(self, deadline: float) -> None:
        with self._changed:
            self._preempted_by = deadline if self._preempted_by is None else min(deadline, self._preempted_by)
            self._changed.notify_all()
        drain_own_node(self._preempted_by)


def accelerator() -> Accelerator:
    """Return what this machine has; a host of a rehearsal ignores its own devices."""
    if os.environ.get(SIMULATED_VARIABLE):
        return Accelerator.SIMULATED
    if chip_devices():
        return Accelerator.TPU
    has_gpus = glob.glob("/dev/nvidia[0-9]*") or any(map(os.path.exists, _OTHER_GPUS))
    return Accelerator.GPU if has_gpus else Accelerator.NONE


def drain_own_node(deadline: float) -> None:
    """Make Ray drain this node, so that it schedules nothing new there; a repetition is harmless.

    Outside of Ray there is no node, and asking for it would start another Ray.
    """
    if not ray.is_initialized():
        return
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason  # type: ignore[attr-defined]

    with suppress(Exception):  # an outage of Ray's head; the driver gets the notice from this actor too
        context = ray.get_runtime_context()
        GcsClient(address=context.gcs_address).drain_node(
            context.get_node_id(),
            DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION,
            "Google Cloud preempts this machine.",
            int(deadline * 1000),
        )
