"""Where a command writes: results and log lines to standard output, what it says about them to standard error.

What it writes may come from a record, a log or a cluster. Nothing of it makes lines of its own: what one machine, job
or record says stays in the line that tells it, or is indented below it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from tradewind.text import escape_control_characters

_BREAK: Final = "\n"
_INDENTED: Final = "\n    "


def as_line(text: str) -> str:
    """The same as one line: newlines are written as Python writes them, too."""
    return escape_control_characters(text).replace("\n", "\\n")


def say(sentence: str) -> None:
    """Tell the person at the command line; further lines of it, such as the end of a log, are indented."""
    print(f"tradewind: {escape_control_characters(sentence).replace(_BREAK, _INDENTED)}", file=sys.stderr, flush=True)


def write_lines(lines: Sequence[str]) -> None:
    """Write lines as a command's result, each as one; characters that the terminal lacks are replaced."""
    if lines:
        text = "\n".join(map(as_line, lines)) + "\n"
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
        sys.stdout.flush()


def json_lines(value: Any) -> list[str]:
    """A command's result for programs, in plain ASCII."""
    return json.dumps(value, indent=2).splitlines()


# What ends a command before its time: each a sentence for standard error, and an exit code.


class CommandError(Exception):
    """The command cannot do what it was asked to do."""

    exit_code = 1


class UsageError(CommandError):
    """What was asked makes no sense as it stands; nothing was done."""

    exit_code = 2
