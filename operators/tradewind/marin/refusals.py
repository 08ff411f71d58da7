"""Why a file cannot become a DAG: one sentence with file, line and reason.

While a file is loaded, a refusal is no ``Exception``: code that catches those would go on with a guess. What is refused
is also noted, so that a bare ``except`` does not hide it either.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
import types
from dataclasses import dataclass, replace
from pathlib import Path

from tradewind.steps import ExperimentError
from tradewind.text import escape_control_characters


class RefusedFileError(ExperimentError):
    """A Marin file cannot become DAGs; the text names file, line and reason.

    Attributes:
        reason: The line and the reason apart; None where it is about no file that was loaded.
        is_own: Whether it is an error or an end of the file's own, which it would come to with Marin, too.
    """

    reason: Reason | None = None
    is_own: bool = False


class LoadAborted(BaseException):
    """Ends the loading of a file from wherever in it; never seen outside of this package."""


class OutOfTime(BaseException):
    """The file that a thread is loading takes too long."""


@dataclass(frozen=True)
class SourceLine:
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Reason:
    """What was refused, and where; ``place`` is None where no line of the user's own is to blame."""

    place: SourceLine | None
    text: str


FileFingerprint = tuple[int, ...]


def file_fingerprint(file: Path) -> FileFingerprint | None:
    """What tells one state of a file from another, also where a copy keeps the time; None when it is gone."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ctime_ns, stat.st_ino


class Notes(threading.local):
    """What this thread is loading, what was refused in it, and which files it has opened."""

    root: Path | None = None
    reasons: list[Reason]
    opened: dict[Path, FileFingerprint | None]

    def begin(self, root: Path) -> None:
        """A file of the checkout ``root`` is loaded from here on."""
        self.root, self.reasons, self.opened = root, [], {}

    def note_opened(self, path: str | bytes | os.PathLike[str]) -> None:
        """What the steps come from, as it was before it was read."""
        file = Path(os.path.abspath(os.fsdecode(path)))
        if self.root is not None and file.is_relative_to(self.root):
            self.opened.setdefault(file, file_fingerprint(file))

    def end(self) -> None:
        """Nothing is loaded any more."""
        self.root = None


notes = Notes()


def refuse(text: str, place: SourceLine | None = None) -> BaseException:
    """The error to raise because of ``text`` at ``place``, or at the line of the user's that is being run."""
    if notes.root is None:
        return ExperimentError(text)
    where = place or running_place(notes.root)
    notes.reasons.append(Reason(where, text))
    return LoadAborted(text)


def running_place(root: Path) -> SourceLine | None:
    """The innermost line of a file below ``root`` that this thread is running."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if (place := place_below(root, frame.f_code.co_filename, frame.f_lineno)) is not None:
            return place
        frame = frame.f_back
    return None


def place_below(root: Path, file: str, line: int | None) -> SourceLine | None:
    """A line as people name it, from the checkout's root; None for a file elsewhere."""
    start = f"{root}{os.sep}"
    return SourceLine(file.removeprefix(start), line or 0) if file.startswith(start) else None


def place_of_error(root: Path, error: BaseException) -> SourceLine | None:
    """The innermost line of the user's that ``error`` came through."""
    if isinstance(error, SyntaxError) and error.filename:
        return place_below(root, error.filename, error.lineno)
    places = (place_below(root, frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__))
    return next((place for place in reversed(list(places)) if place is not None), None)


def refused_file(shown: str, reason: Reason, is_own: bool = False) -> RefusedFileError:
    """The error of the file ``shown``."""
    through = f" (loading {shown})" if reason.place is not None and reason.place.file != shown else ""
    reason = replace(reason, text=escape_control_characters(reason.text))
    error = RefusedFileError(
        escape_control_characters(f"{reason.place or shown} cannot become a DAG: {reason.text}{through}")
    )
    error.reason, error.is_own = reason, is_own
    return error


def reraise_refusal() -> None:
    """Where the user's code goes on after any error: not after a refusal, nor when its time is up."""
    error = sys.exc_info()[1]
    if isinstance(error, (LoadAborted, OutOfTime)):
        raise error
