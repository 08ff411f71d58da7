"""``tradewind cluster ssh-head``, ``ssh-tpu`` and ``exec``: a shell or a command on the machines of a cluster.

On one machine a command has this terminal, and its exit code is ours. On several each line is told with its machine.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from tradewind.cli.errors import CommandError, UsageError
from tradewind.cli.fleet.access.options import EXEC, HEAD_WORD, SSH_HEAD, SSH_TPU
from tradewind.cli.options import Command
from tradewind.cli.output import as_line, say
from tradewind.fleet.access.hosts import ClusterHosts, SliceHost
from tradewind.fleet.access.remote import HostResult, HostRuns, RunEnv, remote_command, run_here, shell_line
from tradewind.fleet.access.ssh import SshHost
from tradewind.fleet.clusters import Fleet, FleetCluster

_SEPARATOR = "--"


def ssh_head(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """A shell on the head, or a command there; what that ended with.

    Raises:
        UsageError: What was asked makes no sense.
        FleetError: The head is not reached.
    """
    return _on_one(ClusterHosts(fleet.cluster(arguments.name)).head(), arguments.command_words, arguments.run_env)


def ssh_tpu(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """The same on a host of a slice, by its name or its address. Raises the same."""
    if arguments.host is None:
        raise UsageError("Say on which host: tradewind cluster ssh-tpu CLUSTER SLICE[:N], or its address.")
    there = ClusterHosts(fleet.cluster(arguments.name))
    [host] = there.reachable(there.named([arguments.host])[:1])
    return _on_one(host, arguments.command_words, arguments.run_env)


def exec_command(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """A command on the head, or on hosts of slices; what it ended with, or 1 if that was not 0 on one of several.

    Raises:
        UsageError: What was asked makes no sense.
        FleetError: Google Cloud does not say where that is, or the only machine is not reached.
    """
    command = arguments.command_words
    if not command:
        raise UsageError("There is no command: tradewind cluster exec CLUSTER [--host SLICE[:N]] -- COMMAND ...")
    cluster = fleet.cluster(arguments.name)
    hosts = chosen_hosts(cluster, arguments.host, all_hosts=arguments.all_hosts)
    if len(hosts) == 1:
        return _on_one(hosts[0], command, arguments.run_env)
    line = remote_command(shell_line(command), RunEnv(arguments.run_env), is_terminal=False)
    return told_results(HostRuns(PrefixedLines(hosts).write).run(hosts, line))


def chosen_hosts(cluster: FleetCluster, names: Sequence[str], *, all_hosts: bool) -> list[SshHost]:
    """The machines that are meant: the head if nothing is said.

    Raises:
        UsageError: Hosts are named, and all are asked for.
        CommandError: There are none.
        FleetError: Google Cloud does not say, or there is no such host.
    """
    there = ClusterHosts(cluster)
    if all_hosts:
        if any(name != HEAD_WORD for name in names):
            raise UsageError(f"--all-hosts means every host of every slice: name none, but for --host {HEAD_WORD}.")
        hosts = _all_ready(there, cluster)
    else:
        hosts = there.named(named) if (named := [name for name in names if name != HEAD_WORD]) else []
    head = [there.head()] if HEAD_WORD in names or not (hosts or all_hosts) else []
    found = [*head, *there.reachable(hosts)]
    if not found:
        raise CommandError(f"Cluster {cluster.name} has no slice that is READY.")
    return found


def _all_ready(there: ClusterHosts, cluster: FleetCluster) -> list[SliceHost]:
    slices = there.slices()
    for one in slices:
        if not one.hosts:
            say(f"Slice {one.name} of {cluster.name} is {one.state} and left out.")
    return [host for one in slices for host in one.hosts]


class PrefixedLines:
    """What machines say, line by line, each with the name of its machine before it if there are several."""

    def __init__(self, hosts: Sequence[SshHost]) -> None:
        self._width = max(len(host.name) for host in hosts) if len(hosts) > 1 else 0
        self._lock = threading.Lock()

    def write(self, host: SshHost, line: str, is_error: bool) -> None:
        """One line of ``host``."""
        prefix = f"{host.name.ljust(self._width)} | " if self._width else ""
        with self._lock:
            print(as_line(f"{prefix}{line}"), file=sys.stderr if is_error else sys.stdout, flush=True)


def told_results(results: Sequence[HostResult]) -> int:
    """Say where it did not end with 0; 1 if there is such a machine."""
    bad = [result for result in results if result.code != 0]
    for result in bad:
        say(result.why or f"{result.host} ended with {result.code}.")
    if bad:
        say(f"{len(results) - len(bad)} of {len(results)} machines ended with 0.")
    return 1 if bad else 0


_NAMED: Final[Mapping[str, tuple[Command, tuple[str, ...]]]] = {
    SSH_HEAD.name: (SSH_HEAD, ("name",)),
    SSH_TPU.name: (SSH_TPU, ("name", "host")),
    EXEC.name: (EXEC, ("name",)),
}
"""The commands that run another one, and what may stand before that."""


def split_words(command_name: str, arguments: argparse.Namespace) -> None:
    """Of a command that runs another one, put what stands before ``--`` where it belongs, and what stands behind it
    into ``command_words``.

    ``argparse`` takes everything behind the first word that is no option as one list, options among them.

    Raises:
        UsageError: There is something before ``--`` that the command does not know.
    """
    if command_name not in _NAMED:
        return
    command, names = _NAMED[command_name]
    words = list(arguments.words)
    cut = words.index(_SEPARATOR) if _SEPARATOR in words else len(words)
    inner = _InnerParser(prog=f"tradewind cluster {command.name}", add_help=False, allow_abbrev=False)
    for option in command.options:
        if option.flags[0].startswith("-"):
            inner.add_argument(*option.flags, **{**option.rest, "default": argparse.SUPPRESS})
    inner.add_argument("given", nargs="*")
    before = inner.parse_args(words[:cut], argparse.Namespace())
    if len(before.given) > len(names):
        more = before.given[len(names)]
        raise UsageError(f"{more!r} is one word too many: write '--' before the command that shall run there.")
    for option_name, value in vars(before).items():
        setattr(arguments, option_name, value)
    for name, value in zip(names, [*before.given, *[None] * len(names)], strict=False):
        setattr(arguments, name, value)
    if "host" in names and arguments.host is None:  # one word only: of the default cluster, or that of an option
        arguments.name, arguments.host = None, arguments.name
    arguments.command_words = words[cut + 1 :]


class _InnerParser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(f"{message}; a command that shall run there stands behind '--'.")


def _on_one(host: SshHost, command: Sequence[str], env: str) -> int:
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    line = shell_line(command) if command else None
    return run_here(host, remote_command(line, RunEnv(env), is_terminal=is_terminal), is_terminal=is_terminal)
