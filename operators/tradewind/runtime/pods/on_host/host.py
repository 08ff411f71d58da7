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
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import ray

from tradewind.cloud_tpu import instance_metadata
from tradewind.cloud_tpu.slice_types import SIMULATED_VARIABLE
from tradewind.runtime.driver.stored_log import StoredLog
from tradewind.runtime.driver.term import Term
from tradewind.runtime.pods.environment import Accelerator, HostProbe, ProcessRank, place_env, process_env
from tradewind.runtime.pods.on_host.heartbeat import HEARTBEAT_VARIABLE, Beat, BeatPage, boot_time
from tradewind.runtime.pods.on_host.host_process import LAST_LINES, MOST_LINES, HostProcess
from tradewind.runtime.pods.on_host.notices import NOTICE_VARIABLE, Notice, write_notice
from tradewind.runtime.pods.on_host.strays import MARK, chip_devices, end_marked, end_strays, mark_of, remove_lockfile
from tradewind.runtime.pods.on_host.warm import CHANGING, lasting, warm_command

NOTICE_S: Final = 30.0
"""Between Google Cloud's notice of a preemption and the end of the machine."""
MAINTENANCE_S: Final = 60.0
"""Between Google Cloud's notice of maintenance and the end of the machine."""
PATIENCE_S: Final = 60.0
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
class Warm:
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

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._raylet = os.getppid()
        self._changed = threading.Condition()
        self._process: HostProcess | None = None
        self._spare: HostProcess | None = None
        self._spare_for: Warm | None = None
        self._folder: str | None = None
        self._beats: BeatPage | None = None
        self._notice: Notice | None = None
        self._renewed_at = -math.inf
        self._term = Term()
        self._patience_s = patience_s
        self._killing = threading.Lock()
        self._preempted_by: float | None = None
        self._problems: list[str] = []
        self._ip = str(ray.util.get_node_ip_address()) if ray.is_initialized() else "127.0.0.1"
        self._mark = mark_of(self._ip, os.getpid())
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
        own = {**place_env(launch.place, is_tpu=launch.is_tpu), **self._own_env()}
        log = StoredLog(launch.log_dir, launch.log_name)
        if problem is not None:
            self._problems.append(problem)
            log.write(f"{problem}\n".encode())
        keep = MOST_LINES if launch.place.rank == 0 else LAST_LINES
        if self._take_spare(launch, own, keep, log):
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

    def warm(self, wanted: Warm) -> None:
        """Start a process that does its imports and waits for ``start``."""
        env = process_env(os.environ, wanted.env, accelerator(), chips=len(chip_devices())) | {MARK: self._mark}
        self._spare_for = wanted
        self._spare = HostProcess(
            warm_command(wanted.command),
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
                end_marked(self._mark)
                self._process.wait(PATIENCE_S)
        with self._changed:
            return self._report()

    def end(self, *, politely: bool = True) -> Report:
        """End what still runs, and bring the log home."""
        if self._process is not None:
            if politely:
                self._process.end()
            self.kill()
            self._process.bring_log_home()
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
        strays = end_strays(self._ip, holds_chips=launch.is_tpu and bool(chip_devices()))
        if strays:
            print(f"Ended {len(strays)} processes that an earlier pod left on this host.", flush=True)
        return remove_lockfile() if launch.is_tpu else None

    def _take_spare(self, launch: Launch, own: Mapping[str, str], keep: int, log: StoredLog) -> bool:
        """Let the process that waits go on with this launch; False if there is none that fits."""
        spare, self._spare = self._spare, None
        if spare is None:
            return False
        if self._spare_for == Warm(launch.command, lasting(launch.env)):
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
