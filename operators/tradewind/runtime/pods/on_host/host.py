"""The actor on each host of a group: it starts one fresh process, says how it does, and ends it when nobody asks.

The driver asks all the time (``poll``). If it has not asked for a minute, it is gone or cut off, and another one may
have these hosts next: then the actor ends the process by itself. It also watches for the notice that Google Cloud gives
before it takes a machine, and passes it on to Ray as a drain.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Final

import ray

from tradewind.cloud_tpu import instance_metadata
from tradewind.cloud_tpu.slice_types import SIMULATED_VARIABLE
from tradewind.machine import boot_time
from tradewind.runtime.driver.fencing import LeaseDeadline
from tradewind.runtime.driver.log_capture import StoredLog
from tradewind.runtime.driver.process_guard import GRACE_S, guarded, kill_descendants
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

# One process on a host: started under a guard in a group of its own, its output kept, its end told once.
#
# The process is in the hands of ``process_guard``, which ends it when the actor that started it or the Ray node under
# it dies. The whole output goes to the host's log; the driver gets it in portions, from hosts other than the first one
# only the end. In neither are the values of the secrets that its environment names.

LAST_LINES: Final = 200
MAX_BUFFERED_LINES: Final = 10_000  # kept for a driver that does not fetch them
_DRAIN_S: Final = 2.0


class HostProcess:
    """Starts at once; one that ``waits`` goes on when it gets a line.

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
        term: LeaseDeadline,
        is_spare: bool = False,
    ) -> None:
        self._keep = keep_lines
        self._log = log
        self._raylet = watch
        self._changed = changed
        self._term = term
        self._masked = StreamMasker(Masker.of_environment(env))
        self._lines: deque[str] = deque()
        self._left_out = 0
        self.exit_code: int | None = None
        """None while it runs, and for ever if the Ray node died."""
        self.is_over = False
        self.was_ended = False
        """It was ended by us, so that its exit code tells nothing."""
        self._guard = subprocess.Popen(
            guarded(command, watch=[watch], with_input=is_spare, term=term.descriptor),
            env=dict(env),
            stdin=subprocess.PIPE if is_spare else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[term.descriptor],
        )
        threading.Thread(target=self._pump, daemon=True, name="output").start()

    @property
    def has_lines(self) -> bool:
        return bool(self._lines)

    def go(self, line: str, keep_lines: int, log: StoredLog) -> bool:
        """Let a process that waits go on; whether it was still there."""
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
        """What has been printed since the last time; the caller holds ``changed``."""
        lines = list(self._lines)
        if self._left_out and self._keep == MAX_BUFFERED_LINES:
            lines.insert(0, f"[{self._left_out} lines left out here; they are in the host's log]")
        self._lines.clear()
        self._left_out = 0
        return tuple(lines)

    def kill(self) -> None:
        """End the process and all that descends from it at once."""
        self._mark_ended()
        kill_descendants(self._guard.pid)
        _kill_group(self._guard)

    def end(self) -> None:
        """End the whole group politely; the guard ends it for good after its grace period."""
        self._mark_ended()
        self._guard.terminate()
        if not self.wait(GRACE_S + 2 * _DRAIN_S):
            _kill_group(self._guard)
            self.wait(_DRAIN_S)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; whether it came."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_over, timeout=timeout_s)

    def upload_log(self) -> None:
        self._log.upload()

    def _mark_ended(self) -> None:
        with self._changed:
            self.was_ended = self.was_ended or not self.is_over

    def _pump(self) -> None:
        """Move the output to the log and to whoever asks, until the process has ended, and tell how."""
        guard = self._guard
        assert guard.stdout is not None
        splitter = LineSplitter()
        for data in _read_until_ended(guard.stdout, guard):
            self._keep_output(self._masked.feed(data), splitter)
        self._keep_output(self._masked.end(), splitter)
        self._add(splitter.end())
        code = guard.wait()
        _kill_group(guard)  # only if the guard itself was killed is anyone left
        self._log.close()
        with self._changed:
            node_died = os.getppid() != self._raylet
            self.exit_code = None if node_died else code
            self.is_over = True
            self.was_ended = self.was_ended or self._term.has_ended(guard.pid)
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
    """The output until its end; soon after the guard's end even if a stray process still holds the pipe."""
    descriptor = output.fileno()
    poller = select.poll()
    poller.register(descriptor, select.POLLIN | select.POLLHUP)
    guard_end = os.pidfd_open(guard.pid)
    poller.register(guard_end, select.POLLIN)
    deadline: float | None = None
    try:
        while deadline is None or time.monotonic() < deadline:
            ready = {descriptor for descriptor, _ in poller.poll(None if deadline is None else _DRAIN_S * 1000)}
            if guard_end in ready and deadline is None:
                deadline = time.monotonic() + _DRAIN_S
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


NOTICE_S: Final = 30.0
"""Between Google Cloud's notice of a preemption and the end of the machine."""
MAINTENANCE_S: Final = 60.0
"""Between Google Cloud's notice of maintenance and the end of the machine."""
DRIVER_TIMEOUT_S: Final = 60.0
_OTHER_GPUS: Final = ("/dev/kfd", "/dev/dxg")
"""AMD's, and those of Windows' Linux."""
_METADATA_WAIT_S: Final = 3600.0


@dataclass(frozen=True)
class Launch:
    """What one host is to run, and as which of how many."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)  # secrets may be in it
    place: ProcessRank
    log_dir: str | None
    log_name: str = "host-0.log"
    is_tpu: bool = True
    has_accelerators: bool = True
    """Whether the group has asked for TPU chips or GPUs."""
    renewed_at: float | None = None
    """When the driver's lease was last renewed, on this host's boot clock; None without a lease."""


@dataclass(frozen=True)
class StandbySpec:
    """What a process that waits for its turn is to run then, without what differs between two starts."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class Report:
    """What happened on a host since the last report."""

    lines: tuple[str, ...] = ()
    exit_code: int | None = None
    """None while the process runs, and for ever if the Ray node died."""
    is_node_dead: bool = False
    """The Ray node under this actor is dead."""
    was_ended: bool = False
    """The process was ended from outside before it ended by itself."""
    beat: Beat | None = None
    now: float = 0.0
    """This host's boot clock, on which the beat's times are."""
    preempted_by: float | None = None
    """When the machine goes (epoch seconds), if Google Cloud has said so."""


class PodHost:
    """One per host; its methods may run at the same time in different threads."""

    def __init__(self, patience_s: float = DRIVER_TIMEOUT_S) -> None:
        self._raylet = os.getppid()
        self._changed = threading.Condition()
        self._process: HostProcess | None = None
        self._spare: HostProcess | None = None
        self._spare_for: StandbySpec | None = None
        self._folder: str | None = None
        self._beats: BeatPage | None = None
        self._notice: Notice | None = None
        self._renewed_at = -math.inf
        self._term = LeaseDeadline()
        self._patience_s = patience_s
        self._killing = threading.Lock()
        self._preempted_by: float | None = None
        self._problems: list[str] = []
        self._ip = str(ray.util.get_node_ip_address()) if ray.is_initialized() else "127.0.0.1"
        self._mark = process_mark(self._ip, os.getpid())
        threading.Thread(target=self._watch_driver, daemon=True, name="watch-driver").start()
        if os.environ.get(instance_metadata.HOST_VARIABLE) or chip_devices():
            for watched in (
                (instance_metadata.wait_for_preemption, NOTICE_S),
                (instance_metadata.wait_for_maintenance, MAINTENANCE_S),
            ):
                threading.Thread(target=self._watch_metadata, args=watched, daemon=True, name="watch-metadata").start()

    def probe(self) -> HostProbe:
        with socket.socket() as free:
            free.bind(("", 0))
            return HostProbe(self._ip, accelerator(), int(free.getsockname()[1]), boot_time())

    def start(self, launch: Launch) -> None:
        """Start the process; returns once it exists."""
        self._extend_term(launch.renewed_at)
        problem = self._clear_host(launch)
        own = {**rank_env(launch.place, is_tpu=launch.is_tpu), **self._own_env()}
        log = StoredLog(launch.log_dir, launch.log_name)
        if problem is not None:
            self._problems.append(problem)
            log.write(f"{problem}\n".encode())
        keep = MAX_BUFFERED_LINES if launch.place.rank == 0 else LAST_LINES
        if self._take_standby(launch, own, keep, log):
            return
        on = accelerator() if launch.has_accelerators else Accelerator.NONE
        env = process_env(os.environ, launch.env, on, keep_threads=not launch.is_tpu, chips=len(chip_devices()))
        self._process = HostProcess(
            launch.command,
            {**env, **own},
            log,
            keep_lines=keep,
            watch=self._raylet,
            changed=self._changed,
            term=self._term,
        )

    def start_standby(self, wanted: StandbySpec) -> None:
        """Start a process that does its imports and waits for ``start``."""
        env = process_env(os.environ, wanted.env, accelerator(), chips=len(chip_devices())) | {MARK: self._mark}
        self._spare_for = wanted
        self._spare = HostProcess(
            standby_command(wanted.command),
            env,
            StoredLog(None, ""),
            keep_lines=LAST_LINES,
            watch=self._raylet,
            changed=self._changed,
            term=self._term,
            is_spare=True,
        )

    def poll(self, hold_s: float, *, eager: bool, renewed_at: float | None = None) -> Report:
        """What is new: at once when the process has ended, or when there are lines (``eager``), else after a while.

        ``renewed_at`` is as in ``Launch``: from then on, not from this call, counts how long the process may run.
        """
        self._extend_term(renewed_at)
        with self._changed:
            self._changed.wait_for(lambda: self._has_news(eager), timeout=hold_s)
            self._extend_term(renewed_at)
            return self._report()

    def notify(self, notice: Notice) -> None:
        """Leave the notice where the process looks for it, also one that has yet to start."""
        self._notice = notice
        if self._folder is not None:
            write_notice(os.path.join(self._folder, "notice.json"), notice)

    def kill(self) -> Report:
        """End the process's whole group at once, and whatever else it started."""
        with self._killing:  # whoever comes second finds all of it gone
            if self._process is not None:
                self._process.kill()
                kill_marked(self._mark)
                self._process.wait(DRIVER_TIMEOUT_S)
        with self._changed:
            return self._report()

    def end(self, *, politely: bool = True) -> Report:
        """End what still runs, and bring the log home."""
        if self._process is not None:
            if politely:
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
        """Nobody of an earlier pod is left on this host when the process starts, nor the lock file of its library.

        Returns what is wrong with that file, if it stays.
        """
        strays = kill_orphans(self._ip, holds_chips=launch.is_tpu and bool(chip_devices()))
        if strays:
            print(f"Ended {len(strays)} processes that an earlier pod left on this host.", flush=True)
        return remove_lockfile() if launch.is_tpu else None

    def _take_standby(self, launch: Launch, own: Mapping[str, str], keep: int, log: StoredLog) -> bool:
        """Let the process that waits go on with this launch; False if there is none that fits."""
        spare, self._spare = self._spare, None
        if spare is None:
            return False
        if self._spare_for == StandbySpec(launch.command, stable_env(launch.env)):
            changing = {name: value for name, value in launch.env.items() if name in CHANGING}
            if spare.go(json.dumps({**changing, **own}), keep, log):
                self._process = spare
                return True
        spare.kill()
        return False

    def _own_env(self) -> dict[str, str]:
        self._beats = BeatPage()
        self._folder = tempfile.mkdtemp(prefix="pod-", dir=_session_folder())
        with suppress(OSError):  # only for who looks from outside
            os.symlink(self._beats.path, os.path.join(self._folder, "heartbeat.json"))
        if self._notice is not None:
            self.notify(self._notice)
        return {
            MARK: self._mark,
            HEARTBEAT_VARIABLE: self._beats.path,
            NOTICE_VARIABLE: os.path.join(self._folder, "notice.json"),
        }

    def _extend_term(self, renewed_at: float | None) -> None:
        """Let the process run until the lease is too old, or without one until the driver has been silent so long."""
        self._renewed_at = max(self._renewed_at, boot_time() if renewed_at is None else renewed_at)
        fenced_at = self._renewed_at + self._patience_s
        self._term.set(fenced_at, fenced_at + self._patience_s / 4)  # as ``killed_s`` of a lease

    def _watch_driver(self) -> None:
        while True:
            time.sleep(min(1.0, self._patience_s / 10))
            process = self._process
            if process is not None and not process.is_over and self._term.is_over:
                self.kill()

    def _watch_metadata(self, wait: Callable[[float], bool | None], notice_s: float) -> None:
        while wait(_METADATA_WAIT_S) is not True:
            time.sleep(1.0)
        with self._changed:
            deadline = time.time() + notice_s
            self._preempted_by = deadline if self._preempted_by is None else min(deadline, self._preempted_by)
            self._changed.notify_all()
        _drain_own_node(self._preempted_by)


def accelerator() -> Accelerator:
    """What this machine really has; a host of a rehearsal leaves alone what it may have."""
    if os.environ.get(SIMULATED_VARIABLE):
        return Accelerator.SIMULATED
    if chip_devices():
        return Accelerator.TPU
    has_gpus = glob.glob("/dev/nvidia[0-9]*") or any(map(os.path.exists, _OTHER_GPUS))
    return Accelerator.GPU if has_gpus else Accelerator.NONE


def _session_folder() -> str | None:
    """Ray's own folder for this session, which goes with the node; None outside of Ray."""
    node = ray._private.worker._global_node
    return None if node is None else str(node.get_session_dir_path())


def _drain_own_node(deadline: float) -> None:
    """Tell Ray that this node goes, so that nothing new is put on it; once more does no harm.

    Outside of Ray there is no node, and to ask for one would start a Ray of our own.
    """
    if not ray.is_initialized():
        return
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason  # type: ignore[attr-defined]

    with suppress(Exception):  # Ray's head may be away; the driver hears of the notice from us as well
        context = ray.get_runtime_context()
        GcsClient(address=context.gcs_address).drain_node(
            context.get_node_id(),
            DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION,
            "Google Cloud preempts this machine.",
            int(deadline * 1000),
        )
