"""Commands that reach a cluster's machines, users, dashboards and logs.

``ssh-head``, ``ssh-tpu`` and ``exec`` run a shell or a command on machines. On one machine it has this terminal, and
its exit code becomes that of the command. With several machines each output line names its machine.

``announce`` sends a message through Airflow's notifiers. ``dashboard`` opens the dashboards of one or several clusters.
``show-logs`` and ``monitor`` print what Ray's processes wrote. ``push-env`` updates a cluster's environment on its
hosts while Ray runs.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import threading
import webbrowser
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Final

from tradewind.cli.fleet.options import EXEC, HEAD_WORD, SSH_HEAD, SSH_TPU
from tradewind.cli.in_airflow import enter_airflow
from tradewind.cli.interrupts import Interrupted
from tradewind.cli.options import Command
from tradewind.cli.output import CommandError, UsageError, as_line, json_lines, say, write_lines
from tradewind.fleet.access.dashboards import Dashboards, served_page
from tradewind.fleet.access.hosts import ClusterHosts, SliceHost, SliceOfHosts
from tradewind.fleet.access.ssh import (
    HostResult,
    HostRuns,
    RunEnv,
    SshHost,
    remote_command,
    run_interactive,
    shell_line,
)
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.lock import PUSH_ENV, ClusterLock
from tradewind.fleet.push_env import EnvironmentPush, HostPush, PushState, machines_of, newest_versions
from tradewind.text import format_columns

_SEPARATOR = "--"
_PUSH_HEADER = ("HOST", "FILES", "CHANGED", "REMOVED", "RAY HAS OTHERS")
LOGS_VARIABLE: Final = "TRADEWIND_RAY_LOGS"
_DEFAULT_LOGS: Final = "/tmp/ray/session_latest/logs"
_DEFAULT_PATTERNS: Final = ("gcs_server.*", "monitor.*", "dashboard.log", "raylet.*", "runtime_env_agent.log")
_MONITOR: Final = ("monitor.*",)
_PATTERN: Final = re.compile(r"[A-Za-z0-9_*?\[\]][A-Za-z0-9_.*?\[\]-]*")
# Standard input closes when the reader is gone, and this ends ``tail``.
_FOLLOW: Final = 'tail -n {lines} -F -- "$@" & cat > /dev/null; kill $!'
_PRINT: Final = 'exec tail -n {lines} -- "$@"'
_FIND: Final = (
    'cd {folder} 2> /dev/null || {{ echo "Ray has no logs in {folder}" >&2; exit 1; }}; '
    'set --; for file in {patterns}; do if [ -f "$file" ]; then set -- "$@" "$file"; fi; done; '
    'if [ $# = 0 ]; then echo "no log is called {names}" >&2; exit 1; fi; '
)


def ssh_head(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Open a shell or run a command on the head; return its exit code.

    Raises:
        UsageError: The options make no sense.
        FleetError: The head cannot be reached.
    """
    return _on_one(ClusterHosts(fleet.cluster(arguments.name)).head(), arguments.command_words, arguments.run_env)


def ssh_tpu(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Do the same on a host of a slice, by its name or its address. Raises the same."""
    if arguments.host is None:
        raise UsageError("Name the host: tradewind cluster ssh-tpu CLUSTER SLICE[:N], or its address.")
    cluster_hosts = ClusterHosts(fleet.cluster(arguments.name))
    [host] = cluster_hosts.reachable(cluster_hosts.named([arguments.host])[:1])
    return _on_one(host, arguments.command_words, arguments.run_env)


def exec_command(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Run a command on the head or on hosts of slices.

    Return its exit code; with several hosts, 1 if any is not 0.

    Raises:
        UsageError: The options make no sense.
        FleetError: Google Cloud does not give the addresses, or the only machine cannot be reached.
    """
    command = arguments.command_words
    if not command:
        raise UsageError("No command is given: tradewind cluster exec CLUSTER [--host SLICE[:N]] -- COMMAND ...")
    cluster = fleet.cluster(arguments.name)
    hosts = chosen_hosts(cluster, arguments.host, all_hosts=arguments.all_hosts)
    if len(hosts) == 1:
        return _on_one(hosts[0], command, arguments.run_env)
    line = remote_command(shell_line(command), RunEnv(arguments.run_env), is_terminal=False)
    return report_results(HostRuns(PrefixedLines(hosts).write).run(hosts, line))


def chosen_hosts(cluster: FleetCluster, names: Sequence[str], *, all_hosts: bool) -> list[SshHost]:
    """Return the chosen machines; the head by default.

    Raises:
        UsageError: Hosts are named, and ``--all-hosts`` is given too.
        CommandError: There are none.
        FleetError: Google Cloud does not answer, or there is no such host.
    """
    cluster_hosts = ClusterHosts(cluster)
    if all_hosts:
        if any(name != HEAD_WORD for name in names):
            raise UsageError(f"--all-hosts means every host of every slice: give no --host except {HEAD_WORD}.")
        hosts = _all_ready(cluster_hosts, cluster)
    else:
        hosts = cluster_hosts.named(named) if (named := [name for name in names if name != HEAD_WORD]) else []
    head = [cluster_hosts.head()] if HEAD_WORD in names or not (hosts or all_hosts) else []
    found = [*head, *cluster_hosts.reachable(hosts)]
    if not found:
        raise CommandError(f"Cluster {cluster.name} has no slice that is READY.")
    return found


def _all_ready(cluster_hosts: ClusterHosts, cluster: FleetCluster) -> list[SliceHost]:
    slices = cluster_hosts.slices()
    for one in slices:
        if not one.hosts:
            say(f"Skipped slice {one.name} of {cluster.name}: it is {one.state}.")
    return [host for one in slices for host in one.hosts]


class PrefixedLines:
    """Print the output of machines by line; with several machines, prefix each line with its machine."""

    def __init__(self, hosts: Sequence[SshHost]) -> None:
        self._width = max(len(host.name) for host in hosts) if len(hosts) > 1 else 0
        self._lock = threading.Lock()

    def write(self, host: SshHost, line: str, is_error: bool) -> None:
        """Print one line of ``host``."""
        prefix = f"{host.name.ljust(self._width)} | " if self._width else ""
        with self._lock:
            print(as_line(f"{prefix}{line}"), file=sys.stderr if is_error else sys.stdout, flush=True)


def report_results(results: Sequence[HostResult]) -> int:
    """Report machines whose exit code is not 0; return 1 if there are any."""
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
"""Commands that run another one, and the arguments allowed before it."""


def split_words(command_name: str, arguments: argparse.Namespace) -> None:
    """Assign the words before ``--`` to their arguments, and those after it to ``command_words``.

    ``argparse`` takes everything after the first word that is no option as one list, options among them.

    Raises:
        UsageError: The command does not know a word before ``--``.
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
        raise UsageError(f"{more!r} is one word too many: write '--' before the command to run there.")
    for option_name, value in vars(before).items():
        setattr(arguments, option_name, value)
    for name, value in zip(names, [*before.given, *[None] * len(names)], strict=False):
        setattr(arguments, name, value)
    if "host" in names and arguments.host is None:  # one word only: of the default cluster, or that of an option
        arguments.name, arguments.host = None, arguments.name
    arguments.command_words = words[cut + 1 :]


class _InnerParser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(f"{message}; write the command to run there after '--'.")


def _on_one(host: SshHost, command: Sequence[str], env: str) -> int:
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    line = shell_line(command) if command else None
    return run_interactive(host, remote_command(line, RunEnv(env), is_terminal=is_terminal), is_terminal=is_terminal)


def announce_to_users(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Send the message about one cluster, or about all.

    Raises:
        UsageError: No cluster is given, or Airflow is not installed.
        FleetError: The message could not be sent, or not through all notifiers.
    """
    if bool(arguments.name) == arguments.all:
        raise UsageError("Name a cluster before the message, or give --all. Nothing was announced.")
    names = list(fleet.clusters) if arguments.all else [fleet.cluster(arguments.name).name]
    if find_spec("airflow") is None:
        raise UsageError("Notifiers belong to Airflow, which is not installed here: run this where Airflow is set up.")
    enter_airflow()  # for the notifiers' connections
    from tradewind.deployment.announce import announce, configured_notifiers

    if arguments.dry_run:
        through = ", ".join(one.classpath for one in configured_notifiers()) or "no notifier, because none is set up"
        say(f"Would announce for {', '.join(names)}, through {through}: {arguments.message}")
        return 0
    say(f"Announced through {', '.join(announce(arguments.message, names))}.")
    return 0


def dashboard(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Open the dashboards until the user presses Ctrl-C; several clusters share one page.

    Raises:
        UsageError: Clusters are named, and ``--all`` is given too.
        CommandError: The only one does not answer, or the page's port is taken.
    """
    if arguments.all and arguments.names:
        raise UsageError("--all means every cluster of the fleet file: name none.")
    names = dict.fromkeys(arguments.names) or [None]
    clusters = list(fleet.clusters.values()) if arguments.all else [fleet.cluster(name) for name in names]
    try:
        if len(clusters) == 1:
            return _one(clusters[0], is_to_open=arguments.open)
        return _several(clusters, arguments.port, is_to_open=arguments.open)
    except Interrupted:
        return 0


def open_dashboard(cluster: FleetCluster) -> int:
    """Open the dashboard of one cluster in a browser."""
    try:
        return _one(cluster, is_to_open=True)
    except Interrupted:
        return 0


def _one(cluster: FleetCluster, *, is_to_open: bool) -> int:
    with Dashboards([cluster], say) as dashboards:
        dashboards.wait_for_first_check()
        [tile] = dashboards.tiles()
        if tile.why is not None:
            raise CommandError(f"The dashboard of {cluster.name} cannot be opened.")
        if is_to_open:
            webbrowser.open(tile.url)
        threading.Event().wait()
    return 0


def _several(clusters: list[FleetCluster], port: int, *, is_to_open: bool) -> int:
    with Dashboards(clusters, say) as dashboards, served_page(dashboards.tiles, port) as url:
        say(f"{len(clusters)} clusters are at {url} until Ctrl-C.")
        if is_to_open:
            webbrowser.open(url)
        threading.Event().wait()
    return 0


def show_logs(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Print the end of Ray's logs on the head, or on hosts of slices.

    Raises:
        UsageError: A file name is no name of a log.
        FleetError: Google Cloud does not give the addresses.
    """
    patterns = arguments.file or _DEFAULT_PATTERNS
    if bad := [pattern for pattern in patterns if not _PATTERN.fullmatch(pattern)]:
        raise UsageError(f"--file {bad[0]!r} is not the name of a log. Examples: raylet.out, 'worker-*'.")
    cluster = fleet.cluster(arguments.name)
    line = log_line(patterns, arguments.lines, is_followed=arguments.follow)
    return _run_on_hosts(cluster, arguments.host, line, all_hosts=arguments.all_hosts)


def monitor(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Follow the log of the head's autoscaler. Raises the same."""
    return _run_on_hosts(fleet.cluster(arguments.name), (), log_line(_MONITOR, arguments.lines, is_followed=True))


def log_line(patterns: Sequence[str], lines: int, *, is_followed: bool) -> str:
    """Return the shell line that prints the last ``lines`` lines of each log that matches a pattern."""
    folder = os.environ.get(LOGS_VARIABLE, _DEFAULT_LOGS)
    find = _FIND.format(folder=shlex.quote(folder), patterns=" ".join(patterns), names=" or ".join(patterns))
    return find + (_FOLLOW if is_followed else _PRINT).format(lines=lines)


def _run_on_hosts(cluster: FleetCluster, names: Sequence[str], line: str, *, all_hosts: bool = False) -> int:
    hosts = chosen_hosts(cluster, names, all_hosts=all_hosts)
    command = remote_command(line, RunEnv.AUTO, is_terminal=False)
    try:
        return report_results(HostRuns(PrefixedLines(hosts).write, is_held=True).run(hosts, command))
    except Interrupted:
        return 0


def push_env(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Write the files on the head and on hosts of slices; return 1 if one of them lacks them afterwards.

    Raises:
        FleetError: A secret has no usable content. Nothing was done.
        ClusterBusyError: Another operation is changing the cluster. Nothing was done.
        FleetError: Google Cloud does not give the hosts, or there is no such host.
    """
    cluster = fleet.cluster(arguments.name)
    if arguments.dry_run:
        return _push(arguments, cluster, lambda: None)
    with ClusterLock.of(cluster).take(PUSH_ENV, "writing files") as lock:
        code = _push(arguments, cluster, lock.check)
        lock.finish()
    return code


def _push(arguments: argparse.Namespace, cluster: FleetCluster, check: Callable[[], None]) -> int:
    """Read the newest versions under the cluster lock, so that no later command writes older ones."""
    versions = newest_versions(cluster)
    cluster_hosts = ClusterHosts(cluster)
    names = arguments.host
    slices = _named(cluster_hosts, names) if names else cluster_hosts.slices()
    head = [cluster_hosts.head()] if not names or HEAD_WORD in names else []
    hosts, lost = machines_of(cluster_hosts, [one for one in slices if one.hosts])
    if not (hosts or lost or head):
        raise CommandError(f"Cluster {cluster.name} has no running host. Nothing was written.")
    if not arguments.json:
        for name, version in versions.items():
            say(f"{name} is {version}.")
    done = [*EnvironmentPush(versions).push([*head, *hosts], is_dry=arguments.dry_run, check=check), *lost]
    absent = [one for one in slices if not one.hosts]
    if arguments.json:
        left_out = [{"slice": one.name, "state": one.state} for one in absent]
        fields = {"cluster": cluster.name, "versions": versions, "hosts": [one.to_json() for one in done]}
        write_lines(json_lines({**fields, "left_out": left_out}))
    else:
        _report(cluster, done, absent, is_dry=arguments.dry_run)
    return 1 if any(one.state.is_bad for one in done) else 0


def _named(cluster_hosts: ClusterHosts, names: Sequence[str]) -> list[SliceOfHosts]:
    """Return the named hosts by slice."""
    by_slice: dict[str, list[SliceHost]] = {}
    for host in cluster_hosts.named([name for name in names if name != HEAD_WORD]):
        by_slice.setdefault(host.slice_name, []).append(host)
    return [SliceOfHosts(name, "READY", tuple(hosts)) for name, hosts in by_slice.items()]


def _report(cluster: FleetCluster, done: Sequence[HostPush], absent: Sequence[SliceOfHosts], *, is_dry: bool) -> None:
    rows = [(one.host, one.state, *map(", ".join, (one.changed, one.removed, one.restart))) for one in done]
    write_lines(format_columns([_PUSH_HEADER, *rows]))
    for one in absent:
        say(f"Slice {one.name} of {cluster.name} is {one.state} and was skipped: it fetches the files when it starts.")
    for failed in (one for one in done if one.state.is_bad):
        say(f"{failed.host}: {failed.why.rstrip('.')}.")
    counts = Counter(one.state for one in done)
    results = ", ".join(f"{count} {state}" for state, count in counts.items())
    say(f"Of {len(done)} hosts: {results}." + (" Nothing was written." if is_dry else ""))
    if counts[PushState.FAILED]:
        say("Fix the failed hosts, and run the command again: it finishes the rest.")
    changed = sorted({name for one in done for name in (*one.changed, *one.removed)})
    if changed and not is_dry:
        say(f"Effective now: new jobs that name a secret env:{changed[0]} get the new value.")
    if stale := sorted({name for one in done for name in one.restart}):
        hosts = sum(1 for one in done if one.restart)
        say(
            f"Effective later: Ray on {hosts} {'host' if hosts == 1 else 'hosts'} and the processes of its jobs still "
            f"have the old {', '.join(stale)}. They get the new value when Ray restarts there: 'tradewind cluster "
            f"restart {cluster.name}', or once the host is replaced."
        )
