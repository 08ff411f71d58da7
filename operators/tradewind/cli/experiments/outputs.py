"""``tradewind adopt``, ``pin`` and ``status``: commands about outputs.

``adopt`` makes existing files the result of a step, and records the user. ``pin`` protects outputs from ``gc``.
``status`` prints the state of each output and its producer.
"""

from __future__ import annotations

import argparse
import posixpath
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict

from tradewind.attempts.renewal import LeaseRenewer
from tradewind.cli.experiments.load import RunChoice, default_prefix, load_experiment
from tradewind.cli.output import CommandError, UsageError, json_lines, say, user_name, write_lines
from tradewind.records.adoption import Adoption, NothingToAdoptError, adopt
from tradewind.records.attempts import utc_now
from tradewind.records.discovery import find_outputs, is_output
from tradewind.records.lease_store import HeldLease, LeaseHolder, LeaseStore, OutputBusyError
from tradewind.records.listing import OutputStatus, statuses
from tradewind.records.pins import Pin, look_for_pins, read_pins, remove_pin, set_pin
from tradewind.records.record import read_records
from tradewind.serialization.references import CodeFolder, function_name
from tradewind.steps.paths import is_absolute
from tradewind.storage import Location, StorageError, resolve_location
from tradewind.text import format_age, format_columns

_STATUS_HEADER = ("STATE", "OUTPUT", "ATTEMPT", "SINCE", "PRODUCER", "JOB")


def adopt_output(arguments: argparse.Namespace) -> int:
    """Adopt an output, and print its record.

    Raises:
        CommandError: There is no such DAG.
        UsageError: There is no such step, or no files that could be its output.
        RecordsError: The step has a result, an attempt is running, or the store does not answer.
    """
    from tradewind.tasks.code import code_folder

    experiment = load_experiment(arguments.dag_id)
    _, step = experiment.run(RunChoice.of(arguments)).task(arguments.step)
    fn_name = function_name(step.step.fn, CodeFolder(code_folder(experiment.dag)))
    by = {"adopted": arguments.path, "user": user_name(), "at": utc_now()}
    adoption = Adoption(step, fn_name, arguments.path, by, copies=arguments.copy)
    try:
        lease = adopt(adoption, renewed_lease)
    except NothingToAdoptError as error:
        hint = "" if arguments.copy or step.output_path == arguments.path.rstrip("/") else " --copy does so."
        raise UsageError(f"{error}{hint}") from None
    say(f"{step.version_name} is finished: {step.output_path}")
    result = {"output_path": step.output_path, "attempt": lease.attempt, "digest": lease.digest, "by": dict(lease.by)}
    write_lines(json_lines(result) if arguments.json else [step.output_path])
    return 0


def renewed_lease(store: LeaseStore, held: HeldLease) -> AbstractContextManager[LeaseHolder]:
    """Renew a lease of this process until the block ends."""
    return LeaseRenewer(store, held, end_work=lambda end: None)


def named_output(prefix: str, word: str) -> str:
    """Return the output path in ``word``; a relative one is below ``prefix``.

    Raises:
        UsageError: It leads out of the prefix, or is no path.
    """
    is_full = is_absolute(word)
    path = (word if is_full else f"{prefix.rstrip('/')}/{word}").rstrip("/") or "/"
    try:
        Location.of(path, "The output")
        place, parent = resolve_location(path, follows_links=False), resolve_location(prefix, follows_links=False)
        if not is_full and not place.is_or_is_below(parent):
            raise UsageError(f"{word!r} leads out of {prefix}: name the output by its full path.")
    except StorageError as error:
        raise UsageError(str(error)) from None
    return path


def pin(arguments: argparse.Namespace) -> int:
    """Set or remove a pin, or print all.

    Raises:
        UsageError: The options do not go together.
        CommandError: There is no such output, or no such pin, or the output is being removed.
    """
    if (arguments.output is None) != arguments.list or (arguments.list and arguments.remove):
        raise UsageError("name the output to pin, or to unpin with --remove; or give only --list.")
    prefix = default_prefix(arguments.prefix)
    if arguments.list:
        found = look_for_pins(prefix)
        pins = list(found.read)
        for error in found.unread:
            say(str(error))
    elif arguments.remove:
        pins = [_remove(prefix, arguments.output)]
    else:
        pins = [_add(prefix, arguments.output, arguments.note)]
    write_lines(json_lines([known.to_json() for known in pins]) if arguments.json else [*map(_line, pins)])
    return 0


def _add(prefix: str, word: str, note: str) -> Pin:
    path = named_output(prefix, word)
    if not is_output(path):
        path = output_of(prefix, word, find_outputs(prefix))
    elif not resolve_location(path).is_below(resolve_location(prefix)):
        raise UsageError(f"{path} is not below {prefix}, where its pin would be stored: give --prefix.")
    new = Pin(path, user_name(), utc_now(), note)
    try:
        is_new = set_pin(prefix, new)
    except OutputBusyError as error:
        raise CommandError(str(error)) from error
    if not is_new:
        say(f"{new.path} is already pinned.")
        return next((known for known in read_pins(prefix) if known.path == new.path), new)
    return new


def _remove(prefix: str, word: str) -> Pin:
    pins = {known.path: known for known in read_pins(prefix)}
    path = output_of(prefix, word, list(pins), what="pinned output")
    remove_pin(prefix, path)
    return pins[path]


def output_of(prefix: str, word: str, outputs: Sequence[str], what: str = "output") -> str:
    """Find one of ``outputs`` by its path, also relative to the prefix, its name-hash, or its hash.

    Raises:
        CommandError: No output matches.
        UsageError: Several outputs match.
    """
    path = named_output(prefix, word)
    if path in outputs:
        return path
    found = [
        output for output in outputs if posixpath.basename(output).endswith(f"-{word}") or output.endswith(f"/{word}")
    ]
    if not found:
        raise CommandError(f"There is no {what} {word!r} below {prefix}.")
    if len(found) > 1:
        raise UsageError(f"{word!r} means several outputs: name one by its path, {', '.join(found)}.")
    return found[0]


def _line(known: Pin) -> str:
    return "  ".join(filter(None, (known.path, known.user, known.at, known.note)))


def status(arguments: argparse.Namespace) -> int:
    """Print the states of a run's outputs, or of all outputs below a prefix; running attempts come first.

    Raises:
        CommandError: There is no such DAG.
        ExperimentError: Its steps cannot be resolved, or there is no prefix.
        StoreUnavailableError: The store does not answer.
    """
    if arguments.dag_id:
        run = load_experiment(arguments.dag_id).run(RunChoice.of(arguments))
        prefix, paths = run.prefix, [step.output_path for _, step in run.tasks]
    else:
        prefix = default_prefix(arguments.prefix)
        paths = list(find_outputs(prefix))
    found = statuses(paths, read_records(paths))
    if arguments.json:
        write_lines(json_lines([asdict(output) | {"state": output.state.value} for output in found]))
    else:
        write_lines(table(found, prefix, time.time()))
    return 0


def table(found: Sequence[OutputStatus], prefix: str, now: float) -> list[str]:
    """Format the statuses in columns with a header."""
    return format_columns([_STATUS_HEADER, *(_row(output, prefix, now) for output in found)])


def _row(output: OutputStatus, prefix: str, now: float) -> tuple[str, ...]:
    below = output.output_path.removeprefix(posixpath.join(prefix, ""))
    since = "-" if output.since is None else format_age(now - output.since)
    return output.state.value, below, str(output.attempt or "-"), since, output.producer or "-", output.job or "-"
