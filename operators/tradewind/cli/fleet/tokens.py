"""``tradewind cluster auth``, ``auth-env``, ``init-token`` and ``set-token``: the token that a cluster's Ray asks for.

A token goes to the clipboard, to a file for its owner alone, or to Secret Manager. It is printed only on a terminal,
and only when there is no clipboard or it is not wanted.
"""

from __future__ import annotations

import argparse
import getpass
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tradewind.cli.errors import CommandError, UsageError
from tradewind.cli.fleet.access.dashboard import open_dashboard
from tradewind.cli.output import say, write_lines
from tradewind.fleet.access.kept_token import fetched_token, keep_token, token_file
from tradewind.fleet.cloud.token_secret import TokenSecret, check_nobody_runs, check_token, new_token, sharing
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.local_paths import expanded

_CLIPBOARDS: Final = (
    ["pbcopy"], ["wl-copy"], ["xclip", "-selection", "clipboard"], ["xsel", "--input", "--clipboard"],
)  # fmt: skip
_LONGEST_TOKEN: Final = 64 * 1024


def auth(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Give the person the token of a cluster, and open its dashboard.

    Raises:
        CommandError: There is nowhere to put it, or the cluster cannot be reached.
        FleetError: Google Cloud does not give it.
    """
    cluster = fleet.cluster(arguments.name)
    if arguments.secret:
        cluster = replace(cluster, token_secret=arguments.secret)
    token = fetched_token(cluster)
    if not (arguments.copy and _copied(token)):
        _show(token, cluster)
    else:
        say(f"The token of {cluster.name} is in the clipboard.")
    return open_dashboard(cluster) if arguments.open else 0


def auth_env(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Print the variables by which Ray's own commands find the token; the token is only in the file that they name."""
    cluster = fleet.cluster(arguments.name)
    fetched_token(cluster)
    path = shlex.quote(str(token_file(cluster)))
    write_lines(["export RAY_AUTH_MODE=token", f"export RAY_AUTH_TOKEN_PATH={path}"])
    return 0


def init_token(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Make the secret of a cluster with a new token; with ``--rotate`` give it one though it has one."""
    return _add(arguments, fleet, new_token)


def set_token(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """The same with the token that is typed, piped in, or in a file."""
    return _add(arguments, fleet, lambda: _given_token(arguments.file))


def _add(arguments: argparse.Namespace, fleet: Fleet, make: Callable[[], str]) -> int:
    cluster = fleet.cluster(arguments.name)
    clusters = sharing(fleet, cluster)
    secret = TokenSecret(cluster.project, cluster.token_secret)
    has_versions = bool(secret.versions())
    check_nobody_runs(clusters)
    token = check_token(make())
    added = secret.add(token) if has_versions and arguments.rotate else secret.create(token)
    file = keep_token(cluster, token)
    names = ", ".join(each.name for each in clusters)
    say(f"{added.name} is the token of {names} from their next start on. It is kept here in {file}.")
    return 0


def _given_token(file: str | None) -> str:
    if file:
        try:
            with expanded(file, "--file").open(errors="replace") as opened:
                return opened.read(_LONGEST_TOKEN)
        except OSError as error:
            raise UsageError(f"--file {file} cannot be read ({error.strerror}).") from None
    if sys.stdin.isatty():
        return getpass.getpass("Token (not shown): ")
    return sys.stdin.read(_LONGEST_TOKEN)


def _copied(token: str) -> bool:
    """Whether a clipboard has ``token`` now."""
    for command in _CLIPBOARDS:
        if shutil.which(command[0]) is None:
            continue
        # Some stay behind to serve the clipboard, and would hold pipes of ours open.
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
            f"The token of {cluster.name} is shown on a terminal only, and there is no clipboard here or it is not "
            f"wanted: 'tradewind cluster auth-env {cluster.name}' keeps it in a file and prints where."
        )
    write_lines([token])
