"""Ray's own launcher, as a process of its own, with the settings that must not be left to chance.

``--no-config-cache``: else it keeps what it resolved in a file that all users of the machine can read, and goes on
using that. The autoscaler's version: else it is the newest, and this package was tried with the first.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tradewind.fleet.errors import FleetError

AUTOSCALER_VARIABLE: Final = "RAY_UP_enable_autoscaler_v2"
_SETTINGS: Final = {AUTOSCALER_VARIABLE: "0", "PYTHONUNBUFFERED": "1"}
_USAGE_VARIABLE: Final = "RAY_USAGE_STATS_ENABLED"
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_LOG_STYLE: Final = ("--log-style", "pretty", "--log-color", "false")
"""As on a terminal. Else, since it writes into a pipe, it prints each of its ``ssh`` commands in full, twice."""
_FALSE_ALARMS: Final = ("TPU pod detected. ", "Dropping the empty legacy field ")
"""Warnings about slices of several hosts, which our provider can do, and about fields that Ray has filled in itself."""
_GRACE_S: Final = 10.0
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

    def up(self, *, is_restart: bool = True) -> None:
        """``ray up``, which makes the head if there is none, and sets it up.

        Args:
            is_restart: Whether a Ray that runs there is ended and started again.

        Raises:
            LauncherError: It failed; what it printed was told.
        """
        options = [] if is_restart else ["--no-restart"]
        with tempfile.TemporaryDirectory(prefix="tradewind-launch-") as folder:
            env = {_USAGE_VARIABLE: "0", **os.environ, **_SETTINGS, "TMPDIR": folder}
            self._run(["up", "-y", "--no-config-cache", *_LOG_STYLE, *options, str(self.file)], env)

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

    def _run(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        last: deque[str] = deque(maxlen=_KEPT_LINES)
        # In a session of its own, so that Ctrl-C is for the command alone, which then ends all of it.
        process = subprocess.Popen(
            [*self._command, *words], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                last.append(_COLOUR.sub("", line).rstrip())
                if not any(alarm in last[-1] for alarm in _FALSE_ALARMS):
                    self._tell(last[-1])
            code = process.wait()
        finally:
            _end(process)
            process.stdout.close()
        if code:
            reasons = [line.removeprefix(_REASON) for line in last if line.startswith(_REASON)]
            ends = [line.strip() for line in last if line.strip()]  # where it gives up by itself
            why = (reasons or ends or ["it said nothing"])[-1]
            raise LauncherError(f"Ray's launcher ended with {code}: {why}")


def _end(process: subprocess.Popen[str]) -> None:
    """End it and all that it started, if it still runs."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, sent)
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            continue
