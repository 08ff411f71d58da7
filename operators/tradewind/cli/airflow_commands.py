"""``airflow tradewind``: the same commands, by connection. Every ``airflow`` command imports this."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from tradewind.cli.fleet.options import CLUSTERS, DEV, REGISTRY
from tradewind.cli.options import EXPERIMENTS, JOBS, RECONCILE, SUMMARY, Command, CommandGroup
from tradewind.cli.rehearse_options import REHEARSE
from tradewind.cli.serve_options import SERVE

if TYPE_CHECKING:
    from airflow.cli.cli_config import ActionCommand, CLICommand

DEFAULT_CONNECTION = "ray_default"


def get_cmds() -> list[CLICommand]:
    """Return the commands that Airflow adds to its own."""
    from airflow.cli.cli_config import GroupCommand

    def group(known: CommandGroup) -> GroupCommand:
        commands = [_command(command, known.prefix) for command in known.commands]
        return GroupCommand(known.prefix.strip(), known.summary, commands)

    groups = map(group, (CLUSTERS, DEV, REGISTRY, REHEARSE, SERVE))
    commands = [*map(_command, EXPERIMENTS), group(JOBS), _command(RECONCILE), *groups]
    return [GroupCommand("tradewind", SUMMARY, commands)]


def _command(command: Command, prefix: str = "") -> ActionCommand:
    from airflow.cli.cli_config import ActionCommand, Arg

    arguments = [Arg(flags=option.flags, **option.rest) for option in command.options]
    func: Callable[[argparse.Namespace], NoReturn] = partial(_run, f"{prefix}{command.name}")
    return ActionCommand(command.name, command.summary, func, arguments, epilog=command.more or None)


def _run(name: str, arguments: argparse.Namespace) -> NoReturn:
    from tradewind.cli.in_airflow import enter_airflow
    from tradewind.cli.main import run

    enter_airflow()
    sys.exit(run(name, arguments, DEFAULT_CONNECTION))
