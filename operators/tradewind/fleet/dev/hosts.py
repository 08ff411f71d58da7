"""The hosts of a slice that a person holds: files go to all of them, and commands run on all of them at once."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tradewind.cloud_tpu.on_hosts.dev_slices import DEV_FOLDER
from tradewind.cloud_tpu.on_hosts.environment_files import ENVIRONMENT_FOLDER
from tradewind.fleet.access.remote import HostResult, HostRuns, RunEnv, remote_command
from tradewind.fleet.access.ssh import SshError, SshHost
from tradewind.fleet.dev.sessions import DevSession
from tradewind.fleet.dev.tree import Listing, LocalTree, lacking

MARK_VARIABLE: Final = "TRADEWIND_POD"
"""What processes carry that end with the holder of their slice, and are strays once it has gone."""
_LONGEST_LISTING: Final = 32 << 20
"""In bytes: a host says in one line which files it has."""
_LONGEST_WHY: Final = 400
_ON_HOST: Final = Path(__file__).with_name("on_host.py")

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
            TreeChangedError: A file is not as ``listing`` has it any more.
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
            lambda host, line, is_error: said.update({(host.name, is_error): line}), longest_bytes=_LONGEST_LISTING
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
                result.why or f"Host {result.host} did not take the files: {said[:_LONGEST_WHY] or result.code}"
            )
