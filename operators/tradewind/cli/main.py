"""``tradewind``: parser, commands and exit codes. Each error is one sentence on standard error."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tradewind.cli.fleet.options import CLUSTER, CLUSTERS, CONFIG, DEV, REGISTRY
from tradewind.cli.options import (
    DATA,
    EXIT_CODES,
    EXPERIMENTS,
    JOB_ALIASES,
    JOBS,
    RECONCILE,
    SUBMIT,
    SUMMARY,
    WHERE,
    Command,
    CommandGroup,
    Option,
)
from tradewind.cli.output import CommandError, UsageError
from tradewind.cli.rehearse_options import REHEARSE
from tradewind.cli.serve_options import SERVE, with_command

if TYPE_CHECKING:
    from tradewind.cli.interrupts import Interrupts
    from tradewind.ray_jobs.cluster import RayCluster

    Work = Callable[[argparse.Namespace, RayCluster, Interrupts], int]

_OPTION_VALUE: Final = re.compile(r"(?<![\w-])(--[\w-]++)=.*", re.DOTALL)
"""An unknown option with its value, which may be a secret."""
_MAX_SHOWN: Final = 500


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point; ends the process."""
    arguments = parser().parse_args(with_command(sys.argv[1:] if argv is None else argv))
    sys.exit(run(arguments.run, arguments))


def run(name: str, arguments: argparse.Namespace, default_connection: str | None = None) -> int:
    """Run the command ``name``; return its exit code.

    Args:
        default_connection: The Airflow connection to use when no option names a cluster.
    """
    from tradewind.cli.interrupts import Interrupted, Interrupts
    from tradewind.cli.output import say

    if job_command := JOB_ALIASES.get(name.removeprefix(CLUSTERS.prefix)):
        name = f"{JOBS.prefix}{job_command.name}"
    try:
        with Interrupts().catching() as interrupts:
            if name == RECONCILE.name:
                from tradewind.cli.reconcile import reconcile

                return reconcile(arguments, interrupts)
            if name.startswith(DATA.prefix):
                from tradewind.cli.data import data_command

                return data_command(name.removeprefix(DATA.prefix), arguments)
            if name.startswith(REHEARSE.prefix):
                from tradewind.cli.rehearse import rehearse

                return rehearse(name.removeprefix(REHEARSE.prefix), arguments)
            if name.startswith(CLUSTERS.prefix):
                from tradewind.cli.fleet.cluster import cluster

                return cluster(name.removeprefix(CLUSTERS.prefix), arguments)
            if name.startswith(DEV.prefix):
                from tradewind.cli.dev_tpu import dev_tpu

                return dev_tpu(name.removeprefix(DEV.prefix), arguments)
            if name.startswith(REGISTRY.prefix):
                from tradewind.cli.fleet.cluster import registry

                return registry(name.removeprefix(REGISTRY.prefix), arguments)
            if name in {command.name for command in EXPERIMENTS}:
                return _run_on_records(_experiment_work(name), arguments)
            if name.startswith(SERVE.prefix):
                from tradewind.cli import serve

                serve.check_usage(name.removeprefix(SERVE.prefix), arguments)
                return _run_on_cluster(
                    serve.WORKS[name.removeprefix(SERVE.prefix)], arguments, default_connection, interrupts
                )
            work = _work(name.removeprefix(JOBS.prefix))
            if name == f"{JOBS.prefix}{SUBMIT.name}":
                from tradewind.cli.jobs.submit import check_usage

                check_usage(arguments)
            return _run_on_cluster(work, arguments, default_connection, interrupts)
    except CommandError as error:
        say(str(error))
        return error.exit_code
    except Interrupted as interrupted:
        return interrupted.exit_code
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of ``tradewind``; ``run`` in its namespace is the name of the command."""
    top = _Parser(prog="tradewind", description=SUMMARY, epilog=EXIT_CODES)
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    _add_group(commands, JOBS, WHERE)
    for command in (*EXPERIMENTS, RECONCILE):
        _add(commands, command)
    _add_group(commands, CLUSTERS, (CLUSTER, CONFIG))
    for group in (DATA, DEV, REGISTRY, REHEARSE, SERVE):
        _add_group(commands, group)
    return top


class _Parser(argparse.ArgumentParser):
    """Parser that reports each error in one sentence."""

    is_destructive = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs, allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown options here: only this parser knows similar ones to suggest."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [flag for action in self._actions for flag in action.option_strings]
            near = get_close_matches(str(unknown[0]).partition("=")[0], options, n=1)
            self.error(f"unrecognized arguments{f' (did you mean {near[0]}?)' if near else ''}: {' '.join(unknown)}")
        return known, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """For an unknown command, name its group or the most similar one instead of listing all.

        Destructive commands are not suggested: a user who mistyped "stop-job" must not be led to "stop".
        """
        if not isinstance(action, argparse._SubParsersAction) or value in action.choices:
            super()._check_value(action, value)
            return
        near = [f"{name} {value}" for name, group in action.choices.items() if value in _safe_commands(group)]
        near += get_close_matches(value, _safe_choices(action), n=2)
        hint = f": did you mean {' or '.join(map(repr, near))}" if near else ""
        raise argparse.ArgumentError(None, f"there is no command {value!r}{hint}")

    def error(self, message: str) -> NoReturn:
        from tradewind.cli.output import as_line

        shown = as_line(_OPTION_VALUE.sub(r"\1=(not shown)", message))
        shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
        self.exit(2, f"tradewind: {shown}; '{self.prog} --help' lists the options.\n")


def _safe_commands(parser: argparse.ArgumentParser) -> list[str]:
    """Return the names of the subcommands of ``parser`` that are not destructive."""
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [name for action in found for name in _safe_choices(action)]


def _safe_choices(action: argparse._SubParsersAction[Any]) -> list[str]:
    return [name for name, command in action.choices.items() if not command.is_destructive]


def _add_group(commands: Any, group: CommandGroup, before: Sequence[Option] = ()) -> None:
    """Add a command with subcommands; ``before`` are options that are also accepted before the subcommand."""
    names = ", ".join(command.name for command in group.commands)
    added = commands.add_parser(group.prefix.strip(), help=names, description=group.summary)
    for option in before:
        added.add_argument(*option.flags, **option.rest)
    below = added.add_subparsers(metavar="COMMAND", required=True)
    for command in group.commands:
        _add(below, command, group.prefix)


def _add(commands: Any, command: Command, prefix: str = "") -> None:
    added = commands.add_parser(command.name, help=command.summary, description=command.summary, epilog=command.more)
    for option in command.options:
        added.add_argument(*option.flags, **option.rest)
    added.set_defaults(run=f"{prefix}{command.name}")
    added.is_destructive = command.is_destructive


def _work(name: str) -> Work:
    from tradewind.cli.jobs.commands import list_jobs, logs, status, stop, wait
    from tradewind.cli.jobs.submit import submit

    works: dict[str, Work] = {
        "submit": submit, "list": list_jobs, "status": status, "logs": logs, "stop": stop, "wait": wait,
    }  # fmt: skip
    return works[name]


def _experiment_work(name: str) -> Callable[[argparse.Namespace], int]:
    match name:
        case "plan" | "why" | "diff":
            from tradewind.cli.experiments.plan import diff, plan, why

            return {"plan": plan, "why": why, "diff": diff}[name]
        case "gc":
            from tradewind.cli.experiments.gc import collect_garbage

            return collect_garbage
        case "evaluations":
            from tradewind.cli.experiments.evaluations import evaluations

            return evaluations
        case "port":
            from tradewind.cli.experiments.port import port_files

            return port_files
    from tradewind.cli.experiments.outputs import adopt_output, pin, status

    return {"adopt": adopt_output, "pin": pin, "status": status}[name]


def _run_on_records(work: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Run a command about an experiment or its outputs; convert errors to ``CommandError``."""
    from tradewind.ray_jobs.errors import RayJobsError
    from tradewind.serialization.errors import SpecError
    from tradewind.steps import ExperimentError
    from tradewind.storage import StorageError, UnsupportedStoreError, UnusablePathError

    try:
        return work(arguments)
    except (ExperimentError, UnusablePathError, UnsupportedStoreError) as error:
        raise UsageError(str(error)) from None
    except BrokenPipeError:
        raise
    except (StorageError, SpecError, RayJobsError, OSError) as error:
        raise CommandError(str(error)) from None


def _run_on_cluster(
    work: Work, arguments: argparse.Namespace, default_connection: str | None, interrupts: Interrupts
) -> int:
    """Run a command about one cluster; convert errors of lower layers to ``CommandError``."""
    from tradewind.cli.jobs.clusters import chosen_cluster, explain_error, is_at_address
    from tradewind.cloud_tpu.slice_types import UnknownSliceTypeError
    from tradewind.ray_jobs.errors import BadRequestError, RayJobsError
    from tradewind.steps import SecretReferenceError

    cluster = None
    try:
        with chosen_cluster(arguments, default_connection, os.environ, Path.home()) as cluster:
            return work(arguments, cluster, interrupts)
    except (UnknownSliceTypeError, SecretReferenceError) as error:
        raise UsageError(str(error)) from None
    except RayJobsError as error:
        kind = UsageError if isinstance(error, BadRequestError) else CommandError
        raise kind(explain_error(error, cluster if cluster and is_at_address(cluster) else None)) from None


if __name__ == "__main__":
    main()
