"""Where a command writes: results and log lines to standard output, what it says about them to standard error.

What it writes may come from a record, a log or a cluster. Nothing of it makes lines of its own: what one machine, job
or record says stays in the line that tells it, or is indented below it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from tradewind.terminal_text import as_text

_BREAK: Final = "\n"
_INDENTED: Final = "\n    "


def as_line(text: str) -> str:
    """The same as one line: newlines are written as Python writes them, too."""
    return as_text(text).replace("\n", "\\n")


def say(sentence: str) -> None:
    """Tell the person at the command line; further lines of it, such as the end of a log, are indented."""
    print(f"tradewind: {as_text(sentence).replace(_BREAK, _INDENTED)}", file=sys.stderr, flush=True)


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
