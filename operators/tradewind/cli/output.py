"""A command's output, errors and user. Results and log lines go to standard output, all else to standard error.

The text may come from a record, a log or a cluster. It cannot start new lines: it stays within its line, or is
indented below it. Each error is a sentence for standard error, with an exit code.
"""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from tradewind.text import escape_control_characters

_BREAK: Final = "\n"
_INDENTED: Final = "\n    "


def as_line(text: str) -> str:
    """Return the text as one line, with newlines escaped as in Python."""
    return escape_control_characters(text).replace("\n", "\\n")


def say(sentence: str) -> None:
    """Print a message for the user; indent its further lines, such as the end of a log."""
    print(f"tradewind: {escape_control_characters(sentence).replace(_BREAK, _INDENTED)}", file=sys.stderr, flush=True)


def write_lines(lines: Sequence[str]) -> None:
    """Write a command's result, one line each; replace characters that the terminal cannot show."""
    if lines:
        text = "\n".join(map(as_line, lines)) + "\n"
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
        sys.stdout.flush()


def json_lines(value: Any) -> list[str]:
    """Format a command's result for programs, in plain ASCII."""
    return json.dumps(value, indent=2).splitlines()


def user_name() -> str:
    """Return the user's name; empty if a container has none for its user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


class CommandError(Exception):
    """The command failed."""

    exit_code = 1


class UsageError(CommandError):
    """The command line makes no sense; nothing was done."""

    exit_code = 2
