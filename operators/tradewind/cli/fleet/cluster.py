"""``tradewind cluster``: choose the fleet file, and run the command on it."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from tradewind.cli.fleet.access import (
    announce_to_users,
    dashboard,
    exec_command,
    monitor,
    push_env,
    show_logs,
    split_words,
    ssh_head,
    ssh_tpu,
)
from tradewind.cli.fleet.config import connections, list_clusters, set_cleanup_policy, update_configs, validate_files
from tradewind.cli.fleet.fleet_file import choose, take_config
from tradewind.cli.fleet.lifecycle import (
    add_worker,
    apply,
    backup_jobs,
    remove_worker,
    repair,
    resize,
    restart,
    restore_jobs,
    split_type,
    start,
    stop,
)
from tradewind.cli.fleet.options import ADD_WORKER, ALIASES
from tradewind.cli.fleet.status import doctor, status
from tradewind.cli.fleet.tokens import auth, auth_env, init_token, rotate_token, set_token
from tradewind.cli.output import CommandError, UsageError, say
from tradewind.fleet.clusters import Fleet
from tradewind.fleet.errors import BadFileError, FleetError, UnknownClusterError
from tradewind.storage import StorageError


def cluster(name: str, arguments: argparse.Namespace) -> int:
    """Run the command ``name`` of ``tradewind cluster``.

    Raises:
        UsageError: The options make no sense.
        CommandError: The command failed.
    """
    commands: dict[str, Callable[[argparse.Namespace, Fleet], int]] = {
        "add-worker": add_worker,
        "announce": announce_to_users,
        "apply": apply,
        "backup-jobs": backup_jobs,
        "auth": auth,
        "auth-env": auth_env,
        "connections": connections,
        "dashboard": dashboard,
        "doctor": doctor,
        "exec": exec_command,
        "init-token": init_token,
        "list": list_clusters,
        "monitor": monitor,
        "push-env": push_env,
        "remove-worker": remove_worker,
        "repair": repair,
        "resize": resize,
        "restart": restart,
        "restore-jobs": restore_jobs,
        "rotate-token": rotate_token,
        "set-token": set_token,
        "show-logs": show_logs,
        "ssh-head": ssh_head,
        "ssh-tpu": ssh_tpu,
        "start": start,
        "status": status,
        "stop": stop,
        "update-configs": update_configs,
    }
    if name == "validate":
        return run_on_fleet(lambda: validate_files(arguments))
    split_words(name, arguments)
    if name == ADD_WORKER.name:
        split_type(arguments)
    return run_on_fleet(lambda: commands[ALIASES.get(name, name)](arguments, choose(arguments)))


def registry(name: str, arguments: argparse.Namespace) -> int:
    """Run the command ``name`` of ``tradewind registry``. Raises the same."""
    if take_config(arguments):
        raise UsageError("--config names the fleet file here: the repositories are those of all clusters.")
    return run_on_fleet({"set-cleanup-policy": lambda: set_cleanup_policy(arguments)}[name])


def run_on_fleet(work: Callable[[], int]) -> int:
    """Return the result of ``work``; convert errors of lower layers to ``CommandError``. Raises the same."""
    try:
        return work()
    except BadFileError as error:
        for sentence in str(error).splitlines():
            say(sentence)
        raise CommandError("The fleet file cannot be used as it is.") from None
    except UnknownClusterError as error:
        raise UsageError(str(error)) from None
    except BrokenPipeError:
        raise
    except (FleetError, StorageError, OSError) as error:
        raise CommandError(str(error)) from None
