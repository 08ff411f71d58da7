"""An error of the user's function is shown as the user's: from their own function on, also out of a Ray task."""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path
from types import TracebackType

_PACKAGE = Path(__file__).parents[2]
_OURS = (f"{_PACKAGE}/calls/", f"{_PACKAGE}/runtime/")
_OUR_FRAME = re.compile(
    rf'^  File "(?:{"|".join(map(re.escape, _OURS))})[^"\n]*", line .*\n(?:    .*\n)*', re.MULTILINE
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def own_error(error: BaseException) -> tuple[BaseException, str]:
    """The user's error behind ``error``, and its traceback as text: from inside the Ray task, if it was in one."""
    if not _is_task_error(error):
        return error, "".join(traceback.format_exception(type(error), error, without_our_frames(error)))
    text = _COLOUR.sub("", str(error)).rstrip("\n") + "\n"  # Ray has put the traceback into the words
    while _is_task_error(error) and isinstance(error.cause, BaseException):  # type: ignore[attr-defined]
        error = error.cause  # type: ignore[attr-defined]
    return error, _OUR_FRAME.sub("", text)


def without_our_frames(error: BaseException) -> TracebackType | None:
    """The error's traceback from the user's function on, or all of it when it did not get that far."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    return frames or error.__traceback__


def _is_task_error(error: BaseException) -> bool:
    exceptions = sys.modules.get("ray.exceptions")
    return exceptions is not None and isinstance(error, exceptions.RayTaskError)
