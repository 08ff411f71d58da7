"""The actor on an engine's host: it runs one engine, relays requests to it, and ends without its pool.

The pool's head polls all the time (``poll``). After ``HEAD_TIMEOUT_S`` without a poll, or at the pool's deadline, the
worker kills its engine and itself; if it is frozen, the kernel does (``KernelTimer``).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import threading
import time
from dataclasses import dataclass
from typing import Final, NoReturn

import ray

from tradewind.cloud_tpu import instance_metadata
from tradewind.machine import boot_time
from tradewind.runtime.driver.fencing import LeaseDeadline
from tradewind.runtime.driver.process_guard import KernelTimer
from tradewind.runtime.pods.on_host.host import accelerator, drain_own_node
from tradewind.runtime.pods.process_env import Accelerator
from tradewind.serving.config import PoolLimits, ServingConfig
from tradewind.serving.engine_process import EngineProcess
from tradewind.serving.relay import Relay

HEAD_TIMEOUT_S: Final = 120.0
"""A head that was lost with its node needs a part of this for its restart elsewhere."""
_KILL_S: Final = 15.0
"""From the deadline to the kernel's SIGKILL of a worker that is frozen."""
_WATCH_S: Final = 0.5


@dataclass(frozen=True)
class WorkerReport:
    """A worker's state.

    Attributes:
        state: Of ``EngineProcess``.
        node_id: Its node.
        node: The node's address.
        url: Of the relay.
        token: Of the relay; it exists in the memory of the worker and the head only.
        error: Why the engine has ended.
        detail: Its last line of output, while it starts.
    """

    state: str
    node_id: str
    node: str
    url: str
    token: str
    error: str = ""
    detail: str = ""


class EngineWorker:
    """The actor; its methods run in threads."""

    def __init__(self, name: str, config: ServingConfig, limits: PoolLimits, ends_at: float) -> None:
        self._ends_at = ends_at
        self._deadline = LeaseDeadline()
        self._kernel_timer = KernelTimer(signal.SIGKILL)
        self._extend_deadline()
        context = ray.get_runtime_context()
        self._node_id, self._ip = context.get_node_id(), str(ray.util.get_node_ip_address())
        self._token = secrets.token_hex(32)
        self._relay = Relay(self._ip, self._token)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name="relay").start()
        self._port = asyncio.run_coroutine_threadsafe(self._relay.start(), self._loop).result()
        self._engine = EngineProcess(config, limits, self._deadline, ip=self._ip, log_dir=_log_folder(), name=name)
        threading.Thread(target=self._run, daemon=True, name="engine").start()
        threading.Thread(target=self._watch_deadline, daemon=True, name="watch-deadline").start()
        if os.environ.get(instance_metadata.HOST_VARIABLE) or accelerator() is not Accelerator.NONE:
            instance_metadata.watch_end(drain_own_node)  # so that the pool's head sees that this node ends

    def poll(self) -> WorkerReport:
        """Return the state, and run for another ``HEAD_TIMEOUT_S``."""
        self._extend_deadline()
        engine = self._engine
        lines = engine.last_lines() if engine.state == "starting" else []
        return WorkerReport(
            engine.state,
            self._node_id,
            self._ip,
            f"http://{self._ip}:{self._port}",
            self._token,
            engine.error,
            lines[-1] if lines else "",
        )

    def end(self) -> None:
        """Shut the engine down."""
        self._engine.end()

    def _run(self) -> None:
        self._engine.run(self._open_relay, self._close_relay)

    def _open_relay(self, port: int) -> None:
        self._relay.engine_port = port

    def _close_relay(self) -> None:
        self._relay.engine_port = None
        self._loop.call_soon_threadsafe(self._relay.close_connections)

    def _extend_deadline(self) -> None:
        end = boot_time() + min(HEAD_TIMEOUT_S, max(0.0, self._ends_at - time.time()))
        self._deadline.set(end, end + _KILL_S)
        if not self._deadline.is_over:
            self._kernel_timer.set(end + _KILL_S)

    def _watch_deadline(self) -> NoReturn:
        while not self._deadline.is_over:
            time.sleep(_WATCH_S)
        self._engine.end()
        os._exit(0)


def _log_folder() -> str | None:
    """Return the folder of Ray's logs on this node, which its dashboard shows and which ends with the node."""
    node = ray._private.worker._global_node
    return None if node is None else str(node.get_logs_dir_path())
