"""Commands about Ray's token: ``auth``, ``auth-env``, ``init-token``, ``set-token``, ``rotate-token``.

A token goes to the clipboard, to a file that only its owner can read, or to Secret Manager. It is printed only on a
terminal, and only without a clipboard or at the user's request. A rotation restarts all clusters that share the token.
"""

from __future__ import annotations

import argparse
import getpass
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tradewind.cli.fleet.access import open_dashboard
from tradewind.cli.fleet.config import renew_connections
from tradewind.cli.fleet.lifecycle import (
    agree,
    jobs_to_preserve,
    look_for_image,
    manager_of,
    report_lost_jobs,
    show_affected_jobs,
    wait_until_ready,
)
from tradewind.cli.jobs.clusters import HOME_TOKEN_FILE
from tradewind.cli.output import CommandError, UsageError, say, write_lines
from tradewind.fleet.access.connect import cache_token, fetch_token, token_file
from tradewind.fleet.cloud.token_secret import (
    TokenSecret,
    check_no_head_running,
    check_token,
    clusters_sharing_token,
    new_token,
)
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.lifecycle.cluster_manager import ClusterManager
from tradewind.fleet.lifecycle.rotation import TokenRotation
from tradewind.fleet.local_paths import expanded
from tradewind.fleet.lock import ClusterLock
from tradewind.machine import write_private_file
from tradewind.ray_jobs.job_restore import RestoreResult
from tradewind.storage.bounded_read import read_local

_CLIPBOARDS: Final = (
    ["pbcopy"], ["wl-copy"], ["xclip", "-selection", "clipboard"], ["xsel", "--input", "--clipboard"],
)  # fmt: skip
_MAX_TOKEN_CHARS: Final = 64 * 1024


def auth(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Give the user the token of a cluster, and open its dashboard.

    Raises:
        CommandError: There is neither clipboard nor terminal for it, or the cluster cannot be reached.
        FleetError: Google Cloud does not give it.
    """
    cluster = fleet.cluster(arguments.name)
    if arguments.secret:
        cluster = replace(cluster, token_secret=arguments.secret)
    token = fetch_token(cluster)
    if not (arguments.copy and _copy(token)):
        _show(token, cluster)
    else:
        say(f"The token of {cluster.name} is in the clipboard.")
    return open_dashboard(cluster) if arguments.open else 0


def auth_env(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Print variables for Ray's own commands; they name the token's file, not the token."""
    cluster = fleet.cluster(arguments.name)
    token, file = fetch_token(cluster), token_file(cluster)
    if arguments.home:
        file = Path.home() / HOME_TOKEN_FILE
        file.parent.mkdir(mode=0o700, exist_ok=True)
        write_private_file(file, token)
        say(f"The token of {cluster.name} is in {file}, for Ray's own commands.")
    write_lines(["export RAY_AUTH_MODE=token", f"export RAY_AUTH_TOKEN_PATH={shlex.quote(str(file))}"])
    return 0


def init_token(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Create the secret of a cluster with a new token; ``--rotate`` replaces an existing one."""
    return _add(arguments, fleet, new_token)


def set_token(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Do the same with a token that is typed, piped in, or in a file."""
    return _add(arguments, fleet, lambda: _given_token(arguments.file))


def _add(arguments: argparse.Namespace, fleet: Fleet, make: Callable[[], str]) -> int:
    cluster = fleet.cluster(arguments.name)
    clusters = clusters_sharing_token(fleet, cluster)
    secret = TokenSecret(cluster.project, cluster.token_secret)
    has_versions = bool(secret.versions())
    check_no_head_running(clusters)
    token = check_token(make())
    added = secret.add(token) if has_versions and arguments.rotate else secret.create(token)
    file = cache_token(cluster, token)
    names = ", ".join(each.name for each in clusters)
    say(f"{added.name} is the token of {names} from their next start. This machine has it in {file}.")
    return 0


def _given_token(file: str | None) -> str:
    if file:
        try:
            content = read_local(expanded(file, "--file"), _MAX_TOKEN_CHARS)
        except OSError as error:
            raise UsageError(f"--file {file} cannot be read ({error.strerror}).") from None
        if content.flaw:
            raise UsageError(f"--file {file} cannot be used: {content.flaw}.")
        return content.text
    if sys.stdin.isatty():
        return getpass.getpass("Token (not shown): ")
    return sys.stdin.read(_MAX_TOKEN_CHARS)


def _copy(token: str) -> bool:
    """Copy ``token`` to a clipboard; return whether this worked."""
    for command in _CLIPBOARDS:
        if shutil.which(command[0]) is None:
            continue
        # Some keep running to serve the clipboard, and would hold our pipes open.
        given: dict[str, Any] = {"input": token, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            done = subprocess.run(command, text=True, timeout=10.0, check=False, **given)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return True
    return False


def _show(token: str, cluster: FleetCluster) -> None:
    if not sys.stdout.isatty():
        raise CommandError(
            f"The token of {cluster.name} is printed only on a terminal, and there is no clipboard here or --no-copy "
            f"was given: 'tradewind cluster auth-env {cluster.name}' stores it in a file and prints the path."
        )
    write_lines([token])


def rotate_token(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Rotate the tokens of the named clusters, and of those that share them, once the user agrees.

    Raises:
        FleetError: A rotation cannot be started or finished. Running the command again continues it.
    """
    named = [fleet.cluster(name) for name in arguments.name or [None]]
    groups = {(one.project, one.token_secret): clusters_sharing_token(fleet, one) for one in named}
    managers = {one.name: manager_of(one, fleet) for group in groups.values() for one in group}
    running = [one for group in groups.values() for one in group if managers[one.name].inventory().heads]
    _report_plan(groups.values(), running, managers)
    if arguments.dry_run:
        return 0
    names = ", ".join(one.name for one in running)
    agree(arguments, f"Rotate the token, and restart {names}?" if running else "Rotate the token?")
    found = [one for group in groups.values() for one in _rotate(arguments, group, managers)]
    for one in running:
        wait_until_ready(arguments, one)
    return report_lost_jobs(found)


def _report_plan(
    groups: Iterable[Sequence[FleetCluster]], running: Sequence[FleetCluster], managers: Mapping[str, ClusterManager]
) -> None:
    for group in groups:
        secret = f"projects/{group[0].project}/secrets/{group[0].token_secret}"
        say(f"{secret} is the token of {', '.join(one.name for one in group)}.")
    for one in running:
        look_for_image(one)
        show_affected_jobs(one, managers[one.name].inventory())


def _rotate(
    arguments: argparse.Namespace, group: Sequence[FleetCluster], managers: Mapping[str, ClusterManager]
) -> list[RestoreResult]:
    def hand_out(version: int) -> None:
        fetch_token(group[0], str(version))
        renew_connections(group)

    return TokenRotation(
        group,
        TokenSecret(group[0].project, group[0].token_secret),
        managers=managers,
        markers={one.name: ClusterLock.of(one) for one in group},
        jobs={one.name: jobs_to_preserve(arguments, one) for one in group},
        hand_out=hand_out,
        tell=say,
    ).run()
