"""One life of an engine on a worker: fetch the model, start the process, wait until it serves, watch it.

An engine that ends is not started again here: its worker reports it and is replaced, perhaps on a better node. The
process runs under a guard (``process_guard``), so it never outlives its worker, its node or the pool.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from tradewind.machine import free_port
from tradewind.ray_jobs.secret_patterns import redact_tokens
from tradewind.runtime.driver.fencing import LeaseDeadline
from tradewind.runtime.driver.log_capture import StoredLog
from tradewind.runtime.driver.secrets import fetch_secrets
from tradewind.runtime.pods.on_host.host import HostProcess, accelerator
from tradewind.runtime.pods.on_host.orphans import MARK, chip_devices, kill_orphans, process_mark, remove_lockfile
from tradewind.runtime.pods.process_env import Accelerator, format_exit, process_env
from tradewind.serialization.masking import NAMES_VARIABLE
from tradewind.serving.config import PoolLimits, ServingConfig
from tradewind.serving.engines import EngineCommand, engine_command, needs_model
from tradewind.serving.weights import local_model
from tradewind.steps.resources import Gpu, TpuSlice
from tradewind.text import escape_control_characters

_LAST_LINES: Final = 30
_MAX_LINE_CHARS: Final = 500
_MAX_BUFFERED: Final = 1000
_POLL_S: Final = 0.2
_WATCH_S: Final = 1.0
_HEALTH_S: Final = 5.0


class EngineProcess:
    """The engine; ``run`` returns at its end.

    Attributes:
        state: ``fetching``, ``starting``, ``ready``, then ``failed`` (it never served) or ``lost``.
        error: Why it ended, with its last lines.
    """

    def __init__(
        self,
        config: ServingConfig,
        limits: PoolLimits,
        deadline: LeaseDeadline,
        *,
        ip: str,
        log_dir: str | None,
        name: str,
    ) -> None:
        self._config, self._limits, self._deadline, self._ip = config, limits, deadline, ip
        self._log = StoredLog(log_dir, f"{name}.log")
        self._changed = threading.Condition()
        self._process: HostProcess | None = None
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.state = "fetching"
        self.error = ""

    def run(self, on_ready: Callable[[int], None], on_end: Callable[[], None]) -> None:
        """Run the engine to its end; ``on_ready`` gets its port."""
        try:
            port = self._start()
            if self._wait_ready():
                self.state = "ready"
                on_ready(port)
                self._watch()
        except Exception as error:  # whatever a store or a hub raises is the reason why the engine does not start
            traceback.print_exc()
            self._end(str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}")
        finally:
            on_end()
            if self._process is not None:
                self._process.kill()

    def end(self) -> None:
        """Shut the process down."""
        if self._process is not None:
            self._process.end()

    def last_lines(self) -> list[str]:
        """Return the end of the engine's output, without secrets."""
        if self._process is not None:
            with self._changed:
                self._lines.extend(self._process.take_lines())
        shown = (escape_control_characters(redact_tokens(line))[:_MAX_LINE_CHARS] for line in self._lines)
        return [line for line in shown if line.strip()]

    def _start(self) -> int:
        folder = ""
        if needs_model(self._config):
            folder = local_model(self._config)
        self.state = "starting"
        is_tpu = isinstance(self._config.resources, TpuSlice)
        if is_tpu:
            kill_orphans(self._ip, holds_chips=bool(chip_devices()))
            remove_lockfile()
        port = free_port()
        command = engine_command(self._config, folder, port)
        self._process = HostProcess(
            list(command.argv),
            self._environment(command, is_tpu=is_tpu),
            self._log,
            keep_lines=_MAX_BUFFERED,
            watch=os.getppid(),
            changed=self._changed,
            deadline=self._deadline,
        )
        self._health = f"http://127.0.0.1:{port}/health"
        return port

    def _environment(self, command: EngineCommand, *, is_tpu: bool) -> dict[str, str]:
        secrets = fetch_secrets(self._config.secrets, "The served model")
        kind = accelerator() if is_tpu or isinstance(self._config.resources, Gpu) else Accelerator.NONE
        given: Mapping[str, str] = {**command.env, **secrets, MARK: process_mark(self._ip, os.getpid())}
        env = process_env(os.environ, given, kind, keep_threads=not is_tpu, chips=len(chip_devices()))
        return {**env, NAMES_VARIABLE: ",".join(secrets)} if secrets else env

    def _wait_ready(self) -> bool:
        """Wait for the first healthy answer; return False if there is none."""
        assert self._process is not None
        give_up_at = time.monotonic() + self._limits.start_s
        while not _is_healthy(self._health):
            if self._process.wait(_POLL_S):
                self._end(f"The engine {self._how_it_ended()} before it served.")
                return False
            if time.monotonic() > give_up_at:
                self._end(f"The engine did not answer {self._health} within {self._limits.start_s:.0f} s.")
                return False
        return True

    def _watch(self) -> None:
        assert self._process is not None
        seen_at = time.monotonic()
        while not self._process.wait(_WATCH_S):
            if _is_healthy(self._health):
                seen_at = time.monotonic()
            elif time.monotonic() - seen_at > self._limits.frozen_s:
                self._end(f"The engine has not answered for {self._limits.frozen_s:.0f} s, so it was killed.")
                return
        self._end(f"The engine {self._how_it_ended()}.")

    def _how_it_ended(self) -> str:
        assert self._process is not None
        code = self._process.exit_code
        return "ended with its node" if code is None else format_exit(code)

    def _end(self, why: str) -> None:
        lines = self.last_lines()
        about = redact_tokens(why)
        self.error = "\n".join([about, "Its last lines:", *lines]) if lines else about
        self.state = "lost" if self.state == "ready" else "failed"


_opener: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy cannot reach this host


def _is_healthy(url: str) -> bool:
    try:
        with _opener.open(url, timeout=_HEALTH_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
