"""Ray's own launcher, as a process of its own, with the settings that must not be left to chance.

``--no-config-cache``: else it keeps what it resolved in a file that all users of the machine can read, and goes on
using that. The autoscaler's version: else it is the newest, and this package was tried with the first.

It works under the marker of its cluster: it ends with the command that holds that, however this dies, and with the
marker itself, also while whoever holds it is frozen. So it is never at work beside the next one.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tradewind.fleet.access.ssh import bounded_lines
from tradewind.fleet.errors import FleetError
from tradewind.fleet.lock import HeldClusterLock
from tradewind.runtime.driver.fencing import LeaseDeadline
from tradewind.runtime.driver.process_guard import EXIT_DEADLINE, guarded

AUTOSCALER_VARIABLE: Final = "RAY_UP_enable_autoscaler_v2"
_SETTINGS: Final = {AUTOSCALER_VARIABLE: "0", "PYTHONUNBUFFERED": "1"}
_USAGE_VARIABLE: Final = "RAY_USAGE_STATS_ENABLED"
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_LOG_STYLE: Final = ("--log-style", "pretty", "--log-color", "false")
"""As on a terminal. Else, since it writes into a pipe, it prints each of its ``ssh`` commands in full, twice."""
_FALSE_ALARMS: Final = ("TPU pod detected. ", "Dropping the empty legacy field ")
"""Warnings about slices of several hosts, which our provider can do, and about fields that Ray has filled in itself."""
_GRACE_S: Final = 30.0
"""How long its guard has to end all of it, which takes less."""
_REASON: Final = "Error: "
_KEPT_LINES: Final = 40


class LauncherError(FleetError):
    """Ray's launcher did not do it."""


class RayLauncher:
    """Ray's launcher for one cluster file.

    Args:
        tell: Given each line that it prints.
        command: How Ray is started.
    """

    def __init__(
        self,
        file: Path,
        tell: Callable[[str], None],
        command: Sequence[str] = (sys.executable, "-m", "ray.scripts.scripts"),
    ) -> None:
        self.file = file
        self._tell = tell
        self._command = command

    def up(self, held: HeldClusterLock, *, is_restart: bool = True) -> None:
        """``ray up``, which makes the head if there is none, and sets it up.

        Args:
            held: The cluster's marker, under which it is done.
            is_restart: Whether a Ray that runs there is ended and started again.

        Raises:
            LauncherError: It failed; what it printed was told.
            MarkerLostError: The marker was lost meanwhile, and it was ended.
        """
        options = [] if is_restart else ["--no-restart"]
        with tempfile.TemporaryDirectory(prefix="tradewind-launch-") as folder:
            env = {_USAGE_VARIABLE: "0", **os.environ, **_SETTINGS, "TMPDIR": folder}
            self._run(["up", "-y", "--no-config-cache", *_LOG_STYLE, *options, str(self.file)], env, held)

    def launch_hashes(self) -> dict[str, str]:
        """Node type → the hash that Ray labels its nodes with, and makes nodes anew of which that differs.

        Raises:
            FleetError: Google Cloud does not say which network there is.
        """
        import yaml  # type: ignore[import-untyped]
        from ray.autoscaler._private.util import hash_launch_conf, prepare_config

        from tradewind.fleet.provider import TradewindNodeProvider

        config = prepare_config(yaml.safe_load(self.file.read_text()))
        config = TradewindNodeProvider.fillout_available_node_types_resources(config)
        resolved: dict[str, Any] = TradewindNodeProvider.bootstrap_config(config)
        types = resolved["available_node_types"]
        return {name: hash_launch_conf(types[name]["node_config"], resolved["auth"]) for name in types}

    def _run(self, words: Sequence[str], env: Mapping[str, str], held: HeldClusterLock) -> None:
        last: deque[str] = deque(maxlen=_KEPT_LINES)
        with _term_of(held) as term:
            # In a session of its own, so that Ctrl-C is for the command alone, which then ends all of it.
            process = subprocess.Popen(
                guarded([*self._command, *words], watch=[], term=term.descriptor), env=env,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                pass_fds=[term.descriptor],
            )  # fmt: skip
            assert process.stdout is not None
            try:
                for line in bounded_lines(process.stdout):
                    for part in line.split("\r"):  # of what counts up in one place
                        last.append(_COLOUR.sub("", part).rstrip())
                        if not any(alarm in last[-1] for alarm in _FALSE_ALARMS):
                            self._tell(last[-1])
                code = process.wait()
            finally:
                _end(process)
                process.stdout.close()
        if code == EXIT_DEADLINE:
            held.check()
        if code:
            reasons = [line.removeprefix(_REASON) for line in last if line.startswith(_REASON)]
            ends = [line.strip() for line in last if line.strip()]  # where it gives up by itself
            why = (reasons or ends or ["it said nothing"])[-1]
            raise LauncherError(f"Ray's launcher ended with {code}: {why}")


@contextmanager
def _term_of(held: HeldClusterLock) -> Iterator[LeaseDeadline]:
    """A term that lasts as long as the marker is surely ours."""
    term, over = LeaseDeadline(), threading.Event()

    def prolong() -> None:
        while True:
            term.set(held.ends_at, held.killed_at)
            if over.wait(held.marker.times.fence_poll_s):
                return

    thread = threading.Thread(target=prolong, daemon=True, name="launcher-term")
    term.set(held.ends_at, held.killed_at)
    thread.start()
    try:
        yield term
    finally:
        over.set()
        thread.join()
        os.close(term.descriptor)


def _end(guard: subprocess.Popen[bytes]) -> None:
    """Have the guard end all of it, if it still runs."""
    if guard.poll() is not None:
        return
    guard.terminate()
    try:
        guard.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(guard.pid, signal.SIGKILL)
        guard.wait()
