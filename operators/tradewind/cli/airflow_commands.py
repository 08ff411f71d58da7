"""``airflow tradewind``: the same commands, for a cluster by its connection. Read at each ``airflow`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from tradewind.cli.options import EXPERIMENTS, JOBS, JOBS_SUMMARY, RECONCILE, SUMMARY, Command
from tradewind.cli.rehearse_options import REHEARSE, REHEARSE_GROUP, REHEARSE_SUMMARY

if TYPE_CHECKING:
    from airflow.cli.cli_config import ActionCommand, CLICommand

DEFAULT_CONNECTION = "ray_default"


def get_cmds() -> list[CLICommand]:
    """What Airflow adds to its own commands."""
    from airflow.cli.cli_config import GroupCommand

    jobs = GroupCommand("jobs", JOBS_SUMMARY, [_command(command) for command in JOBS])
    rehearsal = [_command(command, REHEARSE_GROUP) for command in REHEARSE]
    rehearse = GroupCommand(REHEARSE_GROUP.strip(), REHEARSE_SUMMARY, rehearsal)
    return [GroupCommand("tradewind", SUMMARY, [*map(_command, EXPERIMENTS), jobs, _command(RECONCILE), rehearse])]


def _command(command: Command, group: str = "") -> ActionCommand:
    from airflow.cli.cli_config import ActionCommand, Arg

    arguments = [Arg(flags=one.flags, **one.rest) for one in command.options]
    func: Callable[[argparse.Namespace], NoReturn] = partial(_run, f"{group}{command.name}")
    return ActionCommand(command.name, command.summary, func, arguments, epilog=command.more or None)


def _run(name: str, arguments: argparse.Namespace) -> NoReturn:
    from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr

    from tradewind.cli.main import run

    redirect_stdout_log_handlers_to_stderr()
    sys.exit(run(name, arguments, DEFAULT_CONNECTION))
