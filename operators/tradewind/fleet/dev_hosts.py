"""Hosts of a development session: send this folder's files to all of them, and run commands on all at once.

The same files are sent as with a job of this folder: ``.gitignore`` and ``.rayignore`` count, and histories,
environments and ``.env`` are not sent. A file that a host has already, by size and time of change, is not sent again.
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
"""Marks processes that end with the holder of their slice, and are orphans once it is gone."""
_MAX_BYTES: Final = 512 * 1024 * 1024
_MAX_LISTING_BYTES: Final = 32 << 20
"""Limit of the one line in which a host lists its files."""
_MAX_WHY_CHARS: Final = 400
_ON_HOST: Final = Path(__file__).with_name("dev_on_host.py")


@dataclass(frozen=True)
class FileInfo:
    """Metadata of one file: size in bytes, time of change in ns, mode."""

    size: int
    changed_ns: int
    mode: int


Listing = Mapping[str, FileInfo]
"""Path, relative to the folder → the file."""


class LocalTree:
    """One folder of this machine.

    Args:
        excludes: Further files that are not sent, as patterns of ``.gitignore``.
    """

    def __init__(self, folder: Path, excludes: Sequence[str] = ()) -> None:
        self.folder = folder
        self._package = WorkingDirPackage(folder, [*ALWAYS_EXCLUDED, *EXCLUDED_AT_TOP, *excludes])

    def listing(self) -> dict[str, FileInfo]:
        """Return the files that are sent, as they are now.

        Raises:
            FleetError: They have more than 512 MiB.
            BadRequestError: A link leads to a file that is not sent by itself.
        """
        found = {}
        for file in self._package.files():
            path = self.folder / file.path
            try:
                if path.is_file():
                    stat = path.stat()
                    found[file.path] = FileInfo(stat.st_size, stat.st_mtime_ns, stat.st_mode & 0o777)
            except FileNotFoundError:  # just removed by another process
                continue
        if (size := sum(one.size for one in found.values())) > _MAX_BYTES:
            largest = max(found, key=lambda path: found[path].size)
            raise FleetError(
                f"{self.folder} has {size / 2**20:.0f} MiB to send, at most 512 MiB are allowed; the largest file is "
                f"{largest}: exclude unneeded files with --exclude, .gitignore or .rayignore."
            )
        return found

    def pack(self, listing: Listing, paths: Collection[str], target: IO[bytes]) -> None:
        """Write the tar file for hosts: ``listing``, and the files ``paths`` that they lack.

        Raises:
            FleetError: A file has changed since it was listed.
        """
        listed = json.dumps({path: [one.size, one.changed_ns, one.mode] for path, one in listing.items()}).encode()
        with tarfile.open(fileobj=target, mode="w|") as tar:
            _add(tar, LISTING, io.BytesIO(listed), len(listed))
            for path in sorted(paths):
                try:
                    with (self.folder / path).open("rb") as file:
                        _add(tar, path, file, listing[path].size)
                except OSError:  # also from tarfile, for a file that became shorter
                    raise FleetError(f"{path} changed while it was read: try again.") from None


def lacking(listing: Listing, has: Mapping[str, Any]) -> set[str]:
    """Return the paths in ``listing`` that a host lacks or has in another version, by the list ``has`` of its files."""
    return {path for path, one in listing.items() if has.get(path) != [one.size, one.changed_ns]}


def _add(tar: tarfile.TarFile, name: str, content: Any, size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = size
    tar.addfile(entry, content)


Write = Callable[[SshHost, str, bool], None]


class DevHosts:
    """Some hosts of a held slice.

    Args:
        machines: SSH connection of each host.
        marks: Mark of the processes on each host, in the same order.
    """

    def __init__(self, session: DevSession, machines: Sequence[SshHost], marks: Sequence[str]) -> None:
        self.machines = tuple(machines)
        self._session = session
        self._marks = {machine.name: mark for machine, mark in zip(machines, marks, strict=True)}

    def sync(self, tree: LocalTree, listing: Listing) -> int:
        """Send ``tree`` with this ``listing`` to all hosts; return how many files were sent.

        Raises:
            SshError: A host was not reached, or did not take the files.
            FleetError: A file has changed since it was listed.
        """
        lacks = set().union(*(lacking(listing, has) for has in self._fetch_listings()))
        with tempfile.NamedTemporaryFile(prefix="tradewind-dev-") as packed:
            tree.pack(listing, lacks, packed.file)
            packed.flush()
            last: dict[str, str] = {}
            runs = HostRuns(lambda host, line, is_error: last.update({host.name: line}), given=Path(packed.name))
            for result in runs.run(self.machines, lambda host: self.command(host, "put")):
                self._check(result, last.get(result.host, ""))
        return len(lacks)

    def run(self, runs: HostRuns, line: str, env: Mapping[str, str], name: str) -> list[HostResult]:
        """Run ``line`` in the folder on all hosts; it ends when ``runs`` does.

        Args:
            name: Name of the run; an earlier run with this name is ended first.
        """
        # The name has the host's own, because in a rehearsal hosts see each other's processes.
        return runs.run(
            self.machines, lambda host: self.command(host, "run", line=line, env=env, run=f"{name}@{host.name}")
        )

    def command(
        self, host: SshHost, what: str, *, is_terminal: bool = False, env: Mapping[str, str] | None = None, **more: Any
    ) -> str:
        """Return the command for the shell of ``host`` that does ``what`` of ``dev_on_host``."""
        env = {**(env or {}), MARK_VARIABLE: self._marks[host.name]}
        order = {"folder": DEV_FOLDER, "session": self._session.job, "variables": ENVIRONMENT_FOLDER, "env": env}
        words = ["python3", "-I", "-c", _ON_HOST.read_text(), what, json.dumps({"run": "shell", **order, **more})]
        return remote_command(f"exec {shlex.join(words)}", RunEnv.AUTO, is_terminal=is_terminal)

    def _fetch_listings(self) -> list[Mapping[str, Any]]:
        last: dict[tuple[str, bool], str] = {}
        runs = HostRuns(
            lambda host, line, is_error: last.update({(host.name, is_error): line}), longest_bytes=_MAX_LISTING_BYTES
        )
        found: list[Mapping[str, Any]] = []
        for result in runs.run(self.machines, lambda host: self.command(host, "have")):
            self._check(result, last.get((result.host, True), ""))
            try:
                has = json.loads(last.get((result.host, False), ""))
            except (ValueError, RecursionError):
                has = None
            if not isinstance(has, dict):
                raise SshError(f"Host {result.host} does not say which files it has.")
            found.append(has)
        return found

    def _check(self, result: HostResult, output: str) -> None:
        if result.code != 0:
            raise SshError(
                result.why or f"Host {result.host} did not take the files: {output[:_MAX_WHY_CHARS] or result.code}"
            )
