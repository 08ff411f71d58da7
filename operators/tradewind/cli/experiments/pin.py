"""``tradewind pin``: outputs that are kept, whatever ``gc`` finds."""

from __future__ import annotations

import argparse
import posixpath
from collections.abc import Sequence

from tradewind.cli.errors import CommandError, UsageError
from tradewind.cli.experiments.adopt import user_name
from tradewind.cli.experiments.load import default_prefix
from tradewind.cli.experiments.named_outputs import named_output
from tradewind.cli.output import json_lines, say, write_lines
from tradewind.records.attempts import utc_now
from tradewind.records.leases.holding import OutputBusyError
from tradewind.records.outputs.finding import find_outputs, is_output
from tradewind.records.outputs.pins import Pin, look_for_pins, read_pins, remove_pin, set_pin
from tradewind.storage import place_of


def pin(arguments: argparse.Namespace) -> int:
    """Set a pin, take one away, or print all.

    Raises:
        UsageError: The options do not go together.
        CommandError: There is no such output, or no such pin, or the output is being removed.
    """
    if (arguments.output is None) != arguments.list or (arguments.list and arguments.remove):
        raise UsageError("say which output is to be pinned (or no longer, with --remove), or --list alone.")
    prefix = default_prefix(arguments.prefix)
    if arguments.list:
        found = look_for_pins(prefix)
        pins = list(found.read)
        for error in found.unread:
            say(str(error))
    elif arguments.remove:
        pins = [_removed(prefix, arguments.output)]
    else:
        pins = [_added(prefix, arguments.output, arguments.note)]
    write_lines(json_lines([known.to_json() for known in pins]) if arguments.json else [*map(_line, pins)])
    return 0


def _added(prefix: str, word: str, note: str) -> Pin:
    path = path_of(prefix, word)
    if not is_output(path):
        path = output_of(prefix, word, find_outputs(prefix))
    elif not place_of(path).is_below(place_of(prefix)):
        raise UsageError(f"{path} does not lie below {prefix}, where its pin would be: say below what, with --prefix.")
    new = Pin(path, user_name(), utc_now(), note)
    try:
        is_new = set_pin(prefix, new)
    except OutputBusyError as error:
        raise CommandError(str(error)) from error
    if not is_new:
        say(f"{new.path} is pinned already.")
        return next((known for known in read_pins(prefix) if known.path == new.path), new)
    return new


def _removed(prefix: str, word: str) -> Pin:
    pins = {known.path: known for known in read_pins(prefix)}
    path = output_of(prefix, word, list(pins), what="pinned output")
    remove_pin(prefix, path)
    return pins[path]


def output_of(prefix: str, word: str, outputs: Sequence[str], what: str = "output") -> str:
    """The one of ``outputs`` that is meant: by its path, also relative to the prefix, its name-hash, or its hash.

    Raises:
        CommandError: There is none.
        UsageError: There are several.
    """
    path = path_of(prefix, word)
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


def path_of(prefix: str, word: str) -> str:
    """The path that a word stands for, if it is one; a relative path is one below the prefix."""
    return named_output(prefix, word)


def _line(known: Pin) -> str:
    return "  ".join(filter(None, (known.path, known.user, known.at, known.note)))
