"""``tradewind dev-tpu``: which command; ``connect``, ``execute`` and ``watch`` run something on the slice."""

from __future__ import annotations

import argparse
import secrets
import shlex
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tradewind.cli.dev.allocate import allocate
from tradewind.cli.dev.held import held_hosts
from tradewind.cli.errors import CommandError, UsageError
from tradewind.cli.fleet.access.machines import PrefixedLines, told_results
from tradewind.cli.fleet.cluster import run_on_fleet
from tradewind.cli.fleet.fleet_file import cluster_at, fleet_file_of, is_path, load_chosen_fleet
from tradewind.cli.interrupts import Interrupted
from tradewind.cli.jobs.clusters import in_words
from tradewind.cli.jobs.env import SETTINGS_FILE, job_env
from tradewind.cli.output import say
from tradewind.fleet.access.remote import HostResult, HostRuns, run_here
from tradewind.fleet.clusters import Fleet
from tradewind.fleet.dev.hosts import DevHosts
from tradewind.fleet.dev.tree import Listing, LocalTree
from tradewind.fleet.errors import FleetError
from tradewind.ray_jobs.errors import BadRequestError, RayJobsError

_LOOK_S = 0.5


def dev_tpu(name: str, arguments: argparse.Namespace) -> int:
    """Run the command ``name`` of ``tradewind dev-tpu``.

    Raises:
        UsageError: What was asked makes no sense.
        CommandError: It cannot be done.
    """
    command = {"allocate": allocate, "connect": connect, "execute": execute, "watch": watch}[name]
    try:
        return run_on_fleet(lambda: command(arguments, _chosen(arguments)))
    except RayJobsError as error:
        kind = UsageError if isinstance(error, BadRequestError) else CommandError
        raise kind(in_words(error)) from None


def _chosen(arguments: argparse.Namespace) -> Fleet:
    """The fleet that is meant; ``arguments.cluster`` is a name afterwards, also where it was the path of its file."""
    if arguments.cluster is None or not is_path(arguments.cluster):
        return load_chosen_fleet(arguments.fleet)
    path = Path(arguments.cluster)
    fleet = load_chosen_fleet(arguments.fleet or str(fleet_file_of(path)))
    arguments.cluster = cluster_at(path, fleet).name
    return fleet


def connect(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """A shell on one host; what it ended with.

    Raises:
        NoDevSliceError: This person holds no such slice.
        FleetError: The host is not reached.
    """
    hosts = held_hosts(arguments, fleet, [arguments.host])
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    [machine] = hosts.machines
    return run_here(machine, hosts.command(machine, "shell", is_terminal=is_terminal), is_terminal=is_terminal)


def execute(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Send the folder and run the command; what it ended with. Raises the same, and

    Raises:
        UsageError: There is no command, or a variable cannot be given.
    """
    line, env, tree = _command_line(arguments), _variables(arguments), _tree(arguments)
    hosts = held_hosts(arguments, fleet, arguments.host)
    if not arguments.no_sync:
        _sync(hosts, tree, tree.listing())
    runs = HostRuns(PrefixedLines(hosts.machines).write, is_held=True)
    return _code(hosts.run(runs, line, env, f"execute-{secrets.token_hex(4)}"))


def watch(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """The same after each change, until Ctrl-C. Raises the same."""
    line, env, tree = _command_line(arguments), _variables(arguments), _tree(arguments)
    watching = Watching(held_hosts(arguments, fleet, arguments.host), tree, line, env, arguments.debounce)
    try:
        watching.run()
    except Interrupted:
        watching.end()
    return 0


class Watching:
    """One command, begun again after each change of a folder.

    Args:
        debounce_s: For how long nothing must have changed.
    """

    def __init__(self, hosts: DevHosts, tree: LocalTree, line: str, env: dict[str, str], debounce_s: float) -> None:
        self._hosts = hosts
        self._tree = tree
        self._line = line
        self._env = env
        self._debounce_s = debounce_s
        self._name = f"watch-{secrets.token_hex(4)}"
        self._runs: HostRuns | None = None
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Until an exception ends it.

        Raises:
            FleetError: What cannot be mended by another change of the folder: the first time, anything.
        """
        listing: Listing = self._tree.listing()
        _sync(self._hosts, self._tree, listing)
        self._begin()
        while True:
            listing = self._changed(listing)
            self.end()
            try:
                _sync(self._hosts, self._tree, listing)
            except FleetError as error:  # such as a file that is still being written
                say(f"{error} Waiting for the next change.")
                continue
            self._begin()

    def end(self) -> None:
        """End the command, if it runs."""
        if self._runs is not None and self._thread is not None:
            self._runs.end()
            self._thread.join()

    def _begin(self) -> None:
        self._runs = runs = HostRuns(PrefixedLines(self._hosts.machines).write, is_held=True)
        self._thread = threading.Thread(target=self._follow, args=(runs,), daemon=True, name="watched-command")
        self._thread.start()

    def _follow(self, runs: HostRuns) -> None:
        results = self._hosts.run(runs, self._line, self._env, self._name)
        if not runs.was_ended:
            say(f"It ended with {_code(results)}. Waiting for a change in {self._tree.folder}.")

    def _changed(self, before: Listing) -> Listing:
        """What the folder has, once that is not ``before`` and has stayed for a while."""
        last, since = before, time.monotonic()
        while True:
            time.sleep(min(_LOOK_S, self._debounce_s))
            now = self._tree.listing()
            if now != last:
                last, since = now, time.monotonic()
            elif now != before and time.monotonic() - since >= self._debounce_s:
                return now


def _sync(hosts: DevHosts, tree: LocalTree, listing: Listing) -> None:
    sent = hosts.sync(tree, listing)
    where = f"{len(hosts.machines)} hosts" if len(hosts.machines) > 1 else hosts.machines[0].name
    say(f"Sent {sent} of {len(listing)} files to {where}.")


def _code(results: Sequence[HostResult]) -> int:
    """What it ended with: on one host that, on several 1 if one did not end with 0."""
    if len(results) == 1 and results[0].code is not None:
        return results[0].code
    return told_results(results)


def _command_line(arguments: argparse.Namespace) -> str:
    words = arguments.command
    if len(words) < 2 or words[0] != "--":
        raise UsageError("Write the command behind '--': tradewind dev-tpu execute -- python train.py")
    return words[1] if len(words) == 2 else shlex.join(words[1:])


def _variables(arguments: argparse.Namespace) -> dict[str, str]:
    here = Path.cwd()
    return job_env(arguments.env, (), here / arguments.working_dir, here / SETTINGS_FILE, say)


def _tree(arguments: argparse.Namespace) -> LocalTree:
    folder = Path.cwd() / arguments.working_dir
    if not folder.is_dir():
        raise UsageError(f"--working-dir {arguments.working_dir} is no folder.")
    return LocalTree(folder, arguments.exclude)
