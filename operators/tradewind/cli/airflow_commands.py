"""``airflow tradewind``: the same commands, by connection. Every ``airflow`` command imports this."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from tradewind.cli.fleet.options import (
    CLUSTER_COMMANDS,
    CLUSTER_GROUP,
    CLUSTER_SUMMARY,
    DEV,
    DEV_GROUP,
    DEV_SUMMARY,
    REGISTRY,
    REGISTRY_GROUP,
    REGISTRY_SUMMARY,
)
from tradewind.cli.options import EXPERIMENTS, JOBS, JOBS_GROUP, JOBS_SUMMARY, RECONCILE, SUMMARY, Command
from tradewind.cli.rehearse_options import REHEARSE, REHEARSE_GROUP, REHEARSE_SUMMARY

if TYPE_CHECKING:
    from airflow.cli.cli_config import ActionCommand, CLICommand

DEFAULT_CONNECTION = "ray_default"


def get_cmds() -> list[CLICommand]:
    """Return the commands that Airflow adds to its own."""
    from airflow.cli.cli_config import GroupCommand

    jobs = GroupCommand(JOBS_GROUP.strip(), JOBS_SUMMARY, [_command(command, JOBS_GROUP) for command in JOBS])
    rehearsal = [_command(command, REHEARSE_GROUP) for command in REHEARSE]
    rehearse = GroupCommand(REHEARSE_GROUP.strip(), REHEARSE_SUMMARY, rehearsal)
    of_clusters = [_command(command, CLUSTER_GROUP) for command in CLUSTER_COMMANDS]
    cluster = GroupCommand(CLUSTER_GROUP.strip(), CLUSTER_SUMMARY, of_clusters)
    dev = GroupCommand(DEV_GROUP.strip(), DEV_SUMMARY, [_command(command, DEV_GROUP) for command in DEV])
    of_registries = [_command(command, REGISTRY_GROUP) for command in REGISTRY]
    registry = GroupCommand(REGISTRY_GROUP.strip(), REGISTRY_SUMMARY, of_registries)
    commands = [*map(_command, EXPERIMENTS), jobs, _command(RECONCILE), cluster, dev, registry, rehearse]
    return [GroupCommand("tradewind", SUMMARY, commands)]


def _command(command: Command, group: str = "") -> ActionCommand:
    from airflow.cli.cli_config import ActionCommand, Arg

    arguments = [Arg(flags=option.flags, **option.rest) for option in command.options]
    func: Callable[[argparse.Namespace], NoReturn] = partial(_run, f"{group}{command.name}")
    return ActionCommand(command.name, command.summary, func, arguments, epilog=command.more or None)


def _run(name: str, arguments: argparse.Namespace) -> NoReturn:
    from tradewind.cli.in_airflow import enter_airflow
    from tradewind.cli.main import run

    enter_airflow()
    sys.exit(run(name, arguments, DEFAULT_CONNECTION))
