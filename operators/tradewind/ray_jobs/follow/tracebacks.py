"""Finding in a log the exception that ended a process: the last traceback, with what belongs to it and no more."""

from __future__ import annotations

import re
from collections.abc import Sequence

_FIRST_LINE = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(\(\w+\))?(: |$)")
_RAYS_OWN = "ray.exceptions."


def last_traceback(lines: Sequence[str]) -> str | None:
    """The last Python traceback that begins at the start of a line; tasks' tracebacks, which Ray prefixes, do not."""
    starts = [number for number, line in enumerate(lines) if line.rstrip() == _FIRST_LINE]
    if not starts:
        return None
    found = list(lines[starts[-1] :])
    end = next((number for number, line in enumerate(found) if number and line and not line[0].isspace()), None)
    if end is None:
        return "\n".join(found)
    if not found[end].startswith(_RAYS_OWN):  # those explain themselves in further lines, to the end of the log
        rest = found[end + 1 :]
        found = found[: end + 1 + next((n for n, line in enumerate(rest) if not line[:1].isspace()), len(rest))]
    return "\n".join(found).rstrip()


def last_exception(lines: Sequence[str], longest: int = 300) -> str | None:
    """The first line of the exception that :func:`last_traceback` ends with."""
    traceback = last_traceback(lines)
    if traceback is None:
        return None
    named = [line for line in traceback.splitlines()[1:] if _EXCEPTION.match(line)]
    return named[0][:longest] if named else None
