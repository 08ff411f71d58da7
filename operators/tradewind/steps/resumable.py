"""What a step goes on from after an attempt without a result: globs relative to its output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from tradewind.steps.errors import StepConfigError


def check_globs(globs: Sequence[str], where: str) -> tuple[str, ...]:
    """``globs`` as a tuple.

    Raises:
        StepConfigError: One is absolute, leaves the output, or is no text; ``where`` starts the message.
    """
    if isinstance(globs, str):
        raise StepConfigError(f"{where}: resumable is one text, {globs!r}: give a list of globs.")
    for glob in globs:
        if not isinstance(glob, str) or not glob or glob.startswith("/") or ".." in PurePosixPath(glob).parts:
            raise StepConfigError(f"{where}: resumable holds {glob!r}: give globs relative to the step's output.")
    return tuple(globs)
