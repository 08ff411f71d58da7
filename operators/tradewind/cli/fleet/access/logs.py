"""``tradewind cluster show-logs`` and ``monitor``: what Ray's own processes wrote on the machines of a cluster."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Sequence
from typing import Final

from tradewind.cli.errors import UsageError
from tradewind.cli.fleet.access.machines import PrefixedLines, chosen_hosts, told_results
from tradewind.cli.interrupts import Interrupted
from tradewind.fleet.access.remote import HostRuns, RunEnv, remote_command
from tradewind.fleet.clusters import Fleet, FleetCluster

LOGS_VARIABLE: Final = "TRADEWIND_RAY_LOGS"
_LOGS: Final = "/tmp/ray/session_latest/logs"
_USUAL: Final = ("gcs_server.*", "monitor.*", "dashboard.log", "raylet.*", "runtime_env_agent.log")
_MONITOR: Final = ("monitor.*",)
_PATTERN: Final = re.compile(r"[A-Za-z0-9_*?\[\]][A-Za-z0-9_.*?\[\]-]*")
# Standard input ends when nobody reads any more, and ends what follows.
_FOLLOW: Final = 'tail -n {lines} -F -- "$@" & cat > /dev/null; kill $!'
_PRINT: Final = 'exec tail -n {lines} -- "$@"'
_FIND: Final = (
    'cd {folder} 2> /dev/null || {{ echo "there are no logs of Ray in {folder}" >&2; exit 1; }}; '
    'set --; for file in {patterns}; do if [ -f "$file" ]; then set -- "$@" "$file"; fi; done; '
    'if [ $# = 0 ]; then echo "no log there is called {names}" >&2; exit 1; fi; '
)


def show_logs(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Print the end of Ray's logs on the head, or on hosts of slices.

    Raises:
        UsageError: A file is no name of a log.
        FleetError: Google Cloud does not say where that is.
    """
    patterns = arguments.file or _USUAL
    if bad := [pattern for pattern in patterns if not _PATTERN.fullmatch(pattern)]:
        raise UsageError(f"--file {bad[0]!r} is no name of a log: write such as raylet.out or 'worker-*'.")
    cluster = fleet.cluster(arguments.name)
    line = log_line(patterns, arguments.lines, is_followed=arguments.follow)
    return _shown(cluster, arguments.host, line, all_hosts=arguments.all_hosts)


def monitor(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Follow the log of the head's autoscaler. Raises the same."""
    return _shown(fleet.cluster(arguments.name), (), log_line(_MONITOR, arguments.lines, is_followed=True))


def log_line(patterns: Sequence[str], lines: int, *, is_followed: bool) -> str:
    """The line for a shell that shows the last ``lines`` lines of each log that a pattern finds."""
    folder = os.environ.get(LOGS_VARIABLE, _LOGS)
    find = _FIND.format(folder=shlex.quote(folder), patterns=" ".join(patterns), names=" or ".join(patterns))
    return find + (_FOLLOW if is_followed else _PRINT).format(lines=lines)


def _shown(cluster: FleetCluster, names: Sequence[str], line: str, *, all_hosts: bool = False) -> int:
    hosts = chosen_hosts(cluster, names, all_hosts=all_hosts)
    command = remote_command(line, RunEnv.AUTO, is_terminal=False)
    try:
        return told_results(HostRuns(PrefixedLines(hosts).write, is_held=True).run(hosts, command))
    except Interrupted:
        return 0
