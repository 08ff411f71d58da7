"""Processes of a local stack, started in their own sessions and all stopped by process ID, and ports for them.

Every process that a stack starts inherits a marker in its environment, and so do that process's descendants (including
Ray's workers and jobs), whatever session they move to. Stopping looks for the marker, never for a name.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

MARKER = "TRADEWIND_STACK"
SCRATCH_SUFFIX = ".scratch"
_PORTS: Final = range(12_000, 32_000)
"""Below the range from which Linux assigns ports itself (32768 and up), so that no client socket takes one first."""
_given: Final[dict[int, socket.socket]] = {}
"""Ports that this process returned, with the socket that reserves each against other processes."""


class LocalStack:
    """The processes that belong to the folder ``root``, which has their logs under ``logs/``.

    A stack whose root is inside this one belongs to it: stopping the outer stack stops the inner one too.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.logs = self.root / "logs"

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start ``argv`` in its own session with only ``env`` and the marker; log to ``logs/NAME.log``."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                list(argv),
                # SPT_NOENV: setproctitle, which Ray and Airflow call, would overwrite the marker.
                env={**env, MARKER: str(self.root), "SPT_NOENV": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """Every live process of this stack, including descendants of the started ones."""
        return [process for process in psutil.process_iter() if self.owns(process)]

    def scratch(self) -> Path:
        """Create a folder with a short path, for sockets; ``stop`` removes it, also from another process."""
        folder = Path(tempfile.mkdtemp(prefix="tw-"))
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / f"{folder.name}{SCRATCH_SUFFIX}").symlink_to(folder)
        return folder

    def stop(self, grace_seconds: float = 2.0) -> int:
        """Stop every process, first gracefully; remove the scratch folders; return the number of processes."""
        ours = self.processes()
        _signal_all(ours, "terminate")
        psutil.wait_procs(ours, timeout=grace_seconds)
        while stragglers := self.processes():  # including those started meanwhile
            _signal_all(stragglers, "kill")
            psutil.wait_procs(stragglers, timeout=grace_seconds)
        self.remove_scratch()
        return len(ours)

    def remove_scratch(self) -> None:
        """Remove the scratch folders of this stack and of those with roots directly below its own."""
        for link in [*self.root.glob(f"*{SCRATCH_SUFFIX}"), *self.root.glob(f"*/*{SCRATCH_SUFFIX}")]:
            shutil.rmtree(link.readlink(), ignore_errors=True)
            link.unlink()

    def owns(self, process: psutil.Process) -> bool:
        """Whether this is a live process of the stack, other than the calling one."""
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                return False
            marker = process.environ().get(MARKER)
            return marker is not None and Path(marker).is_relative_to(self.root)
        except psutil.Error:
            return False


def roots_in_use() -> list[Path]:
    """Return the roots of all stacks of this user with live processes, without nested ones."""
    roots: set[Path] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if marker := process.environ().get(MARKER):
                roots.add(Path(marker))
    return sorted(root for root in roots if not any(other in root.parents for other in roots))


def kill_together(stacks: Sequence[LocalStack]) -> int:
    """SIGKILL every process of these stacks at once, as if their machines vanished; return their number."""
    killed = 0
    while found := [process for process in psutil.process_iter() if any(stack.owns(process) for stack in stacks)]:
        _signal_all(found, "kill")
        psutil.wait_procs(found, timeout=1.0)
        killed = killed or len(found)
    for stack in stacks:
        stack.remove_scratch()
    return killed


def _signal_all(processes: Sequence[psutil.Process], method: str) -> None:
    for process in processes:
        try:
            getattr(process, method)()
        except psutil.NoSuchProcess:
            continue


def write_private(path: Path, text: str) -> None:
    """Write a file readable only by its owner, atomically, and with these permissions from the start."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)


class NoFreePortError(RuntimeError):
    """All tried ports are in use."""


def free_port() -> int:
    """Return a port that is unused at every address, and reserve it for the life of this process.

    A Ray head listens at every address even if it was given one, so a port free at that address may be in use at
    another. The caller may listen only seconds later, and Ray rejects a head if one of its parts finds its port in use.

    Raises:
        NoFreePortError: No port is free.
    """
    for port in random.sample(_PORTS, k=min(200, len(_PORTS))):
        if port not in _given and _is_free(port) and (claim := _claim(port)) is not None:
            _given[port] = claim
            return port
    raise NoFreePortError(f"No port from {_PORTS[0]} to {_PORTS[-1]} is free on this machine.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def _claim(port: int) -> socket.socket | None:
    """Reserve a port by a socket name that ends with this process; None if another process has it.

    Linux supports socket names that are not files (unix(7), abstract sockets).
    """
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0tradewind-port-{port}")
    except OSError:
        claim.close()
        return None
    return claim
