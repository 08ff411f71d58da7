"""What machines and programs say, line by line: one that never ends a line fills nobody's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Final

LONGEST_BYTES: Final = 1 << 20
"""Of a line that is shown to people: none reads a longer one, and many machines may say one at once."""
_MOST_OF_A_LOG: Final = 64 * 1024


def bounded_lines(stream: IO[bytes], longest_bytes: int = LONGEST_BYTES) -> Iterator[str]:
    """The lines of ``stream`` without their ends, as they come; of one that is longer the beginning, which says so."""
    while line := stream.readline(longest_bytes):
        is_whole = len(line) < longest_bytes or line.endswith(b"\n")
        text = line.decode(errors="replace").rstrip("\r\n")
        yield text if is_whole else f"{text} ... (cut: the line has {longest_bytes:,} bytes or more)"
        while not is_whole and (rest := stream.readline(_MOST_OF_A_LOG)):
            is_whole = rest.endswith(b"\n")


def end_of(log: IO[bytes]) -> str:
    """The end of a log in a file, which is all that is looked at."""
    size = log.seek(0, 2)
    log.seek(max(0, size - _MOST_OF_A_LOG))
    return log.read(_MOST_OF_A_LOG).decode(errors="replace")
