"""Resumable files: globs, relative to the output, of what an attempt keeps of an earlier one.

``*``, ``?`` and ``[...]`` match within one name, ``**`` matches any number of folders. A glob is matched name by name.
The time grows with the lengths of glob and path, not with the number of ways to match them.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Final

from tradewind.steps.errors import StepConfigError
from tradewind.text import truncated_repr

RECURSIVE_WILDCARD: Final = "**"
_MAX_GLOBS: Final = 100
_MAX_GLOB_CHARS: Final = 1000


def check_globs(globs: Sequence[str], where: str) -> tuple[str, ...]:
    """Check ``globs`` and return them as a tuple.

    Raises:
        StepConfigError: One is absolute, leaves the output, or is not text; ``where`` starts the message.
    """
    if isinstance(globs, str) or not isinstance(globs, Sequence):
        raise StepConfigError(f"{where}: resumable is {truncated_repr(globs)}: give a list of globs.")
    if len(globs) > _MAX_GLOBS:
        raise StepConfigError(f"{where}: resumable holds {len(globs)} globs: give {_MAX_GLOBS} at most.")
    for glob in globs:
        if not isinstance(glob, str) or not glob or glob.startswith("/") or ".." in PurePosixPath(glob).parts:
            raise StepConfigError(
                f"{where}: resumable holds {truncated_repr(glob)}: give globs relative to the step's output."
            )
        if len(glob) > _MAX_GLOB_CHARS or not glob.isprintable():
            raise StepConfigError(
                f"{where}: resumable holds {truncated_repr(glob)}: give globs of at most {_MAX_GLOB_CHARS} printable "
                "characters."
            )
        if any(RECURSIVE_WILDCARD in name and name != RECURSIVE_WILDCARD for name in glob.split("/")):
            raise StepConfigError(
                f"{where}: resumable holds {truncated_repr(glob)}: '**' must be a whole name between slashes."
            )
    return tuple(globs)


def matches_glob(glob: str, path: str) -> bool:
    """Whether ``path``, relative to the output, matches ``glob`` or is below a folder that does."""
    names = split_glob(glob)
    reached = _after_any_folders(names, {0})
    for name in path.split("/"):
        if len(names) in reached:
            return True
        after = {at for at in reached if names[at] == RECURSIVE_WILDCARD}
        after |= {at + 1 for at in reached - after if _name_pattern(names[at]).match(name)}
        reached = _after_any_folders(names, after)
    return len(names) in reached


def split_glob(glob: str) -> tuple[str, ...]:
    """Split a glob into names; empty if it means the output itself."""
    path = posixpath.normpath(glob)
    names = [] if path == "." else path.split("/")
    return tuple(
        name
        for at, name in enumerate(names)
        if name != RECURSIVE_WILDCARD or names[at - 1 : at] != [RECURSIVE_WILDCARD]
    )


def _after_any_folders(names: Sequence[str], reached: set[int]) -> set[int]:
    """Return where the rest of a glob may also begin, since ``**`` matches zero folders too."""
    return reached | {at + 1 for at in reached if at < len(names) and names[at] == RECURSIVE_WILDCARD}


@lru_cache(maxsize=1024)
def _name_pattern(name: str) -> re.Pattern[str]:
    """Compile one name of a glob. ``fnmatch`` does not backtrack over stars, so many stars stay cheap."""
    return re.compile(fnmatch.translate(name))
