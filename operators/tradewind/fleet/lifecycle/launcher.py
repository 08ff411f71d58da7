"""Ray's cluster launcher, as a separate process under the cluster's lock.

``--no-config-cache`` prevents the launcher from writing its resolved config to a file that all users of the machine
can read, and from reusing it. The autoscaler's version is fixed: this package was tested with the first, and the
default is the newest.

A process guard ends the launcher when the command that holds the lock ends, however it ends, and when the lock expires,
even while its holder is frozen. So two launchers never run at once.
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
from tradewind.runtime.driver.process_guard import EXIT_DEADLINE, guard_command

AUTOSCALER_VARIABLE: Final = "RAY_UP_enable_autoscaler_v2"
_SETTINGS: Final = {AUTOSCALER_VARIABLE: "0", "PYTHONUNBUFFERED": "1"}
_USAGE_VARIABLE: Final = "RAY_USAGE_STATS_ENABLED"
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_LOG_STYLE: Final = ("--log-style", "pretty", "--log-color", "false")
"""The style of a terminal; the style for a pipe prints each ``ssh`` command in full, twice."""
_FALSE_ALARMS: Final = ("TPU pod detected. ", "Dropping the empty legacy field ")
"""Warnings about multi-host slices, which our provider supports, and about fields that Ray added itself."""
_GRACE_S: Final = 30.0
"""Time for the guard to end all processes, which takes less."""
_ERROR_PREFIX: Final = "Error: "
_MAX_LINES: Final = 40


class LauncherError(FleetError):
    """Ray's launcher failed."""


class RayLauncher:
    """Ray's launcher for one cluster file.

    Args:
        tell: Called with each line that it prints.
        command: The command that starts Ray's CLI.
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
        """Run ``ray up``, which creates the head if there is none, and sets it up.

        Args:
            held: The cluster's lock.
            is_restart: Restart Ray if it runs there.

        Raises:
            LauncherError: It failed; ``tell`` has received its output.
            MarkerLostError: The lock was lost meanwhile, and the guard ended the launcher.
        """
        options = [] if is_restart else ["--no-restart"]
        with tempfile.TemporaryDirectory(prefix="tradewind-launch-") as folder:
            env = {_USAGE_VARIABLE: "0", **os.environ, **_SETTINGS, "TMPDIR": folder}
            self._run(["up", "-y", "--no-config-cache", *_LOG_STYLE, *options, str(self.file)], env, held)

    def launch_hashes(self) -> dict[str, str]:
        """Return node type → launch hash, Ray's label; Ray relaunches nodes whose hash differs.

        Raises:
            FleetError: Google Cloud does not report the network.
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
        last: deque[str] = deque(maxlen=_MAX_LINES)
        with _shared_deadline(held) as deadline:
            # In a new session, so that Ctrl-C reaches only the command, which then ends the launcher.
            process = subprocess.Popen(
                guard_command([*self._command, *words], watch=[], deadline=deadline.descriptor), env=env,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                pass_fds=[deadline.descriptor],
            )  # fmt: skip
            assert process.stdout is not None
            try:
                for line in bounded_lines(process.stdout):
                    for part in line.split("\r"):  # progress counters
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
            reasons = [line.removeprefix(_ERROR_PREFIX) for line in last if line.startswith(_ERROR_PREFIX)]
            ends = [line.strip() for line in last if line.strip()]
            why = (reasons or ends or ["it printed nothing"])[-1]
            raise LauncherError(f"Ray's launcher ended with {code}: {why}")


@contextmanager
def _shared_deadline(held: HeldClusterLock) -> Iterator[LeaseDeadline]:
    """Yield a deadline for process guards, extended as long as this process holds the lock."""
    deadline, over = LeaseDeadline(), threading.Event()

    def extend() -> None:
        while True:
            deadline.set(held.ends_at, held.killed_at)
            if over.wait(held.marker.times.fence_poll_s):
                return

    thread = threading.Thread(target=extend, daemon=True, name="launcher-deadline")
    deadline.set(held.ends_at, held.killed_at)
    thread.start()
    try:
        yield deadline
    finally:
        over.set()
        thread.join()
        os.close(deadline.descriptor)


def _end(guard: subprocess.Popen[bytes]) -> None:
    """Have the guard end the launcher, if it still runs."""
    if guard.poll() is not None:
        return
    guard.terminate()
    try:
        guard.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(guard.pid, signal.SIGKILL)
        guard.wait()
