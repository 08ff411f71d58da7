"""Hosts of a development session: send this folder's files to all of them, and run commands on all at once.

The same files travel as with a job of this folder: ``.gitignore`` and ``.rayignore`` count, and histories, environments
and ``.env`` stay here. A file that a host has already, by size and time of change, is not sent again.
"""

from __future__ import annotations

import io
import json
import shlex
import tarfile
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from tradewind.cloud_tpu.host_files import DEV_FOLDER, ENVIRONMENT_FOLDER
from tradewind.fleet.access.ssh import HostResult, HostRuns, RunEnv, SshError, SshHost, remote_command
from tradewind.fleet.dev_on_host import LISTING
from tradewind.fleet.dev_sessions import DevSession
from tradewind.fleet.errors import FleetError
from tradewind.ray_jobs.runtime_env import ALWAYS_EXCLUDED, EXCLUDED_AT_TOP, WorkingDirPackage

MARK_VARIABLE: Final = "TRADEWIND_POD"
"""Marks processes that end with the holder of their slice, and are orphans once it has gone."""
_MAX_BYTES: Final = 512 * 1024 * 1024
_MAX_LISTING_BYTES: Final = 32 << 20
"""A host prints the list of its files in one line."""
_MAX_WHY_CHARS: Final = 400
_ON_HOST: Final = Path(__file__).with_name("dev_on_host.py")


@dataclass(frozen=True)
class FileInfo:
    """One file by its facts: size in bytes, time of change in ns, mode."""

    size: int
    changed_ns: int
    mode: int


Listing = Mapping[str, FileInfo]
"""Path, relative to the folder → the file."""


class LocalTree:
    """One folder of this machine.

    Args:
        excludes: What stays here besides, in the language of ``.gitignore``.
    """

    def __init__(self, folder: Path, excludes: Sequence[str] = ()) -> None:
        self.folder = folder
        self._travelling = WorkingDirPackage(folder, [*ALWAYS_EXCLUDED, *EXCLUDED_AT_TOP, *excludes])

    def listing(self) -> dict[str, FileInfo]:
        """What travels, as it is now.

        Raises:
            FleetError: It is more than 512 MiB.
            BadRequestError: A link would take along what does not travel by itself.
        """
        found = {}
        for file in self._travelling.files():
            path = self.folder / file.path
            try:
                if path.is_file():
                    there = path.stat()
                    found[file.path] = FileInfo(there.st_size, there.st_mtime_ns, there.st_mode & 0o777)
            except FileNotFoundError:  # removed at this moment
                continue
        if (size := sum(one.size for one in found.values())) > _MAX_BYTES:
            largest = max(found, key=lambda path: found[path].size)
            raise FleetError(
                f"{self.folder} has {size / 2**20:.0f} MiB that would travel, and 512 MiB may; the largest is "
                f"{largest}: leave out what is not needed with --exclude, .gitignore or .rayignore."
            )
        return found

    def pack(self, listing: Listing, paths: Collection[str], target: IO[bytes]) -> None:
        """Write what a host needs to have ``listing``, of which it lacks ``paths``.

        Raises:
            FleetError: One of them is not what it was.
        """
        told = json.dumps({path: [one.size, one.changed_ns, one.mode] for path, one in listing.items()}).encode()
        with tarfile.open(fileobj=target, mode="w|") as tar:
            _add(tar, LISTING, io.BytesIO(told), len(told))
            for path in sorted(paths):
                try:
                    with (self.folder / path).open("rb") as file:
                        _add(tar, path, file, listing[path].size)
                except OSError:  # tarfile's own one too, of a file that became shorter
                    raise FleetError(f"{path} changed while it was read: try again.") from None


def lacking(listing: Listing, has: Mapping[str, Any]) -> set[str]:
    """The paths that are not there as ``listing`` has them, by what a host says that it has."""
    return {path for path, one in listing.items() if has.get(path) != [one.size, one.changed_ns]}


def _add(tar: tarfile.TarFile, name: str, content: Any, size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = size
    tar.addfile(entry, content)


Write = Callable[[SshHost, str, bool], None]


class DevHosts:
    """Some hosts of a held slice, as one logs in on them.

    Args:
        machines: How one logs in on each host that is meant.
        marks: What processes there carry, in the same order.
    """

    def __init__(self, session: DevSession, machines: Sequence[SshHost], marks: Sequence[str]) -> None:
        self.machines = tuple(machines)
        self._session = session
        self._marks = {machine.name: mark for machine, mark in zip(machines, marks, strict=True)}

    def sync(self, tree: LocalTree, listing: Listing) -> int:
        """Have all hosts have ``tree``, which has this ``listing``; how many files were sent.

        Raises:
            SshError: A host was not reached, or did not take them.
            FleetError: A file is not as ``listing`` has it any more.
        """
        lacks = set().union(*(lacking(listing, has) for has in self._have()))
        with tempfile.NamedTemporaryFile(prefix="tradewind-dev-") as packed:
            tree.pack(listing, lacks, packed.file)
            packed.flush()
            said: dict[str, str] = {}
            runs = HostRuns(lambda host, line, is_error: said.update({host.name: line}), given=Path(packed.name))
            for result in runs.run(self.machines, lambda host: self.command(host, "put")):
                self._check(result, said.get(result.host, ""))
        return len(lacks)

    def run(self, runs: HostRuns, line: str, env: Mapping[str, str], name: str) -> list[HostResult]:
        """Run ``line`` in the folder on all hosts; it ends when ``runs`` does.

        Args:
            name: What it is called: an earlier run of this name is ended first.
        """
        # With the host's own name, since in a rehearsal several hosts see each other's processes.
        return runs.run(
            self.machines, lambda host: self.command(host, "run", line=line, env=env, run=f"{name}@{host.name}")
        )

    def command(
        self, host: SshHost, what: str, *, is_terminal: bool = False, env: Mapping[str, str] | None = None, **more: Any
    ) -> str:
        """What the shell of ``host`` is given to do ``what`` of ``on_host``."""
        env = {**(env or {}), MARK_VARIABLE: self._marks[host.name]}
        order = {"folder": DEV_FOLDER, "session": self._session.job, "variables": ENVIRONMENT_FOLDER, "env": env}
        words = ["python3", "-I", "-c", _ON_HOST.read_text(), what, json.dumps({"run": "shell", **order, **more})]
        return remote_command(f"exec {shlex.join(words)}", RunEnv.AUTO, is_terminal=is_terminal)

    def _have(self) -> list[Mapping[str, Any]]:
        said: dict[tuple[str, bool], str] = {}
        runs = HostRuns(
            lambda host, line, is_error: said.update({(host.name, is_error): line}), longest_bytes=_MAX_LISTING_BYTES
        )
        found: list[Mapping[str, Any]] = []
        for result in runs.run(self.machines, lambda host: self.command(host, "have")):
            self._check(result, said.get((result.host, True), ""))
            try:
                has = json.loads(said.get((result.host, False), ""))
            except (ValueError, RecursionError):
                has = None
            if not isinstance(has, dict):
                raise SshError(f"Host {result.host} does not say which files it has.")
            found.append(has)
        return found

    def _check(self, result: HostResult, said: str) -> None:
        if result.code != 0:
            raise SshError(
                result.why or f"Host {result.host} did not take the files: {said[:_MAX_WHY_CHARS] or result.code}"
            )
