"""Processes of one local stack: started in sessions of their own, and stopped by pid without leaving any behind.

Every process that a stack starts inherits a marker in its environment, and so do the processes that those start
(Ray's workers and jobs among them), whatever session they move to. Stopping looks for the marker, never for a name.
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


class LocalStack:
    """The processes that belong to the folder ``root``, which also holds their logs under ``logs/``.

    A stack whose root lies inside this one belongs to it: stopping the outer stack stops the inner one too.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.logs = self.root / "logs"

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start ``argv`` in a session of its own with just ``env`` and the marker; output goes to ``logs/NAME.log``."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                list(argv),
                # SPT_NOENV: setproctitle (Ray's and Airflow's processes call it) would overwrite what we look for.
                env={**env, MARKER: str(self.root), "SPT_NOENV": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """Every live process of this stack, descendants of the ones we started included."""
        return [process for process in psutil.process_iter() if self.owns(process)]

    def scratch(self) -> Path:
        """A new folder with a short path, for sockets; ``stop`` removes it, also from another process."""
        folder = Path(tempfile.mkdtemp(prefix="tw-"))
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / f"{folder.name}{SCRATCH_SUFFIX}").symlink_to(folder)
        return folder

    def stop(self, grace_seconds: float = 2.0) -> int:
        """End every process of the stack, politely first, and remove its scratch; returns how many there were."""
        ours = self.processes()
        _signal_all(ours, "terminate")
        psutil.wait_procs(ours, timeout=grace_seconds)
        while stragglers := self.processes():  # also those that the others started meanwhile
            _signal_all(stragglers, "kill")
            psutil.wait_procs(stragglers, timeout=grace_seconds)
        self.remove_scratch()
        return len(ours)

    def remove_scratch(self) -> None:
        """Remove the scratch folders of this stack and of those whose roots lie right below its own."""
        for link in [*self.root.glob(f"*{SCRATCH_SUFFIX}"), *self.root.glob(f"*/*{SCRATCH_SUFFIX}")]:
            shutil.rmtree(link.readlink(), ignore_errors=True)
            link.unlink()

    def owns(self, process: psutil.Process) -> bool:
        """Whether this is a live process of the stack, and not the one that asks."""
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                return False
            marker = process.environ().get(MARKER)
            return marker is not None and Path(marker).is_relative_to(self.root)
        except psutil.Error:
            return False


def roots_in_use() -> list[Path]:
    """The roots of all stacks of this user that have live processes, without those that lie in others of them."""
    roots: set[Path] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if marker := process.environ().get(MARKER):
                roots.add(Path(marker))
    return sorted(root for root in roots if not any(other in root.parents for other in roots))


def kill_together(stacks: Sequence[LocalStack]) -> int:
    """SIGKILL for every process of these stacks at once, as when their machines vanish; returns how many there were."""
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
    """Write a file that only its owner may read, at no moment readable by others and at no moment half-written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)


# Ports for the servers of a local stack, which several stacks on this machine may want at the same time.

# Below the range from which Linux hands out ports by itself (32768 and up), so that no client socket takes one first.
_PORTS: Final = range(12_000, 32_000)
_given: Final[dict[int, socket.socket]] = {}
"""Those that this process gave, with what keeps every other process from giving them."""


class NoFreePortError(RuntimeError):
    """Somebody listens on every port that was tried."""


def free_port() -> int:
    """A port that nobody listens on now, at any address, and that is given once while this process lives.

    At any address, since a Ray head listens at all of them where it was told one: what is free at that one may be
    taken at another. Who asks may listen only seconds later, and Ray refuses a head of which one part finds its port
    taken.

    Raises:
        NoFreePortError: There is none.
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
    """A name that only one process on this machine can have, and that ends with it; None if another has it.

    Linux gives names of sockets that are no files (unix(7), abstract sockets).
    """
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0tradewind-port-{port}")
    except OSError:
        claim.close()
        return None
    return claim
