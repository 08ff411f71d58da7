"""What others said, as a line of a log or an error: a server, a library, a file, another step's function."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

LONGEST: Final = 300
_MOST_NAMED: Final = 20


def in_a_line(text: object, longest: int = LONGEST) -> str:
    """One line of bounded length, without control characters and what changes the direction of writing."""
    line = " ".join(str(text)[: 10 * longest].split())
    shown = "".join(sign if sign.isprintable() else "?" for sign in line)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def some_names(names: Iterable[object]) -> str:
    """The first of them in quotes, each shortened."""
    first = [repr(in_a_line(name, 60)) for name in islice(names, _MOST_NAMED + 1)]
    return ", ".join([*first[:_MOST_NAMED], *(["..."] if len(first) > _MOST_NAMED else [])])
