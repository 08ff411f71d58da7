"""Where a command writes: results and log lines to standard output, what it says about them to standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def say(sentence: str) -> None:
    """Tell the person at the command line."""
    print(f"tradewind: {sentence}", file=sys.stderr, flush=True)


def write_lines(lines: Sequence[str]) -> None:
    """Write lines as a command's result; characters that the terminal lacks are replaced."""
    if lines:
        text = "\n".join(lines) + "\n"
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
        sys.stdout.flush()
