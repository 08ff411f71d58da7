"""``tradewind adopt``: files that are there become the result of a step, and the record says who said so."""

from __future__ import annotations

import argparse
import getpass
from contextlib import AbstractContextManager

from tradewind.calls.references import CodeFolder, function_name
from tradewind.cli.errors import UsageError
from tradewind.cli.experiments.load import RunChoice, load_experiment
from tradewind.cli.output import json_lines, say, write_lines
from tradewind.records.attempts import utc_now
from tradewind.records.leases.holding import TurnKeeper
from tradewind.records.leases.store import Held, LeaseStore
from tradewind.records.outputs.adoption import Adoption, NothingToAdoptError, adopt
from tradewind.turns.keeper import Keeper


def adopt_output(arguments: argparse.Namespace) -> int:
    """Bring an output in, and print what the record says of it now.

    Raises:
        CommandError: There is no such DAG.
        UsageError: There is no such step, or nothing that could be its output.
        RecordsError: The step has a result, somebody is at work on it, or the store does not answer.
    """
    from tradewind.tasks.code import code_folder

    experiment = load_experiment(arguments.dag_id)
    _, step = experiment.run(RunChoice.of(arguments)).task(arguments.step)
    fn_name = function_name(step.step.fn, CodeFolder(code_folder(experiment.dag)))
    by = {"adopted": arguments.path, "user": user_name(), "at": utc_now()}
    adoption = Adoption(step, fn_name, arguments.path, by, copies=arguments.copy)
    try:
        lease = adopt(adoption, kept)
    except NothingToAdoptError as error:
        hint = "" if arguments.copy or step.output_path == arguments.path.rstrip("/") else " --copy does so."
        raise UsageError(f"{error}{hint}") from None
    say(f"{step.version_name} is finished: {step.output_path}")
    result = {"output_path": step.output_path, "attempt": lease.attempt, "digest": lease.digest, "by": dict(lease.by)}
    write_lines(json_lines(result) if arguments.json else [step.output_path])
    return 0


def kept(store: LeaseStore, held: Held) -> AbstractContextManager[TurnKeeper]:
    """Renews a turn of this process until it is finished."""
    return Keeper(store, held, end_work=lambda end: None)


def user_name() -> str:
    """Who is at the command line; a container may have no name for its user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
