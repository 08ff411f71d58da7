"""Where a command writes: results and log lines to standard output, what it says about them to standard error.

Whatever it writes may come from a record, a log or a cluster, so nothing of it steers the terminal: control characters
are written as text, also the colours of a job's log, and what changes the direction of writing. Nor does it make lines
of its own: what one machine, job or record says stays in the line that tells it, or is indented below it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any, Final

_STEERING: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_BREAK: Final = "\n"
_INDENTED: Final = "\n    "


def as_text(text: str) -> str:
    """``text`` with all that a terminal would obey, but for newlines and tabs, written as Python writes it."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


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
