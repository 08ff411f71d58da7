"""Refusals: why a file cannot become a DAG, in one sentence with file, line and reason.

While a file is loaded, a refusal is not an ``Exception``: code that catches those would continue with a guess. Refusals
are also recorded, so a bare ``except`` does not hide them either.
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
        reason: Line and reason as separate fields; None if no loaded file is concerned.
        is_own: Whether the file's own error or exit caused it, which would also happen in Marin.
    """

    reason: Reason | None = None
    is_own: bool = False


class LoadAborted(BaseException):
    """Stops the loading of a file from any place in it; never leaves this package."""


class OutOfTime(BaseException):
    """The file that a thread is loading exceeds its time limit."""


@dataclass(frozen=True)
class SourceLine:
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Reason:
    """A refusal and its line; ``place`` is None if no line of the user's code is the cause."""

    place: SourceLine | None
    text: str


FileFingerprint = tuple[int, ...]


def file_fingerprint(file: Path) -> FileFingerprint | None:
    """Return a value that changes with the file, even if a copy keeps its time; None for a missing file."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ctime_ns, stat.st_ino


class Notes(threading.local):
    """State of this thread: the checkout being loaded, the refusals, and the files opened."""

    root: Path | None = None
    reasons: list[Reason]
    opened: dict[Path, FileFingerprint | None]

    def begin(self, root: Path) -> None:
        """Start loading a file of the checkout ``root``."""
        self.root, self.reasons, self.opened = root, [], {}

    def note_opened(self, path: str | bytes | os.PathLike[str]) -> None:
        """Record the state of a file that steps depend on, before it is read."""
        file = Path(os.path.abspath(os.fsdecode(path)))
        if self.root is not None and file.is_relative_to(self.root):
            self.opened.setdefault(file, file_fingerprint(file))

    def end(self) -> None:
        """Finish loading."""
        self.root = None


notes = Notes()


def refuse(text: str, place: SourceLine | None = None) -> BaseException:
    """Return the error to raise for ``text`` at ``place``, or at the user's running line."""
    if notes.root is None:
        return ExperimentError(text)
    where = place or running_place(notes.root)
    notes.reasons.append(Reason(where, text))
    return LoadAborted(text)


def running_place(root: Path) -> SourceLine | None:
    """Return the innermost running line of this thread in a file below ``root``."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if (place := place_below(root, frame.f_code.co_filename, frame.f_lineno)) is not None:
            return place
        frame = frame.f_back
    return None


def place_below(root: Path, file: str, line: int | None) -> SourceLine | None:
    """Return a line with its path from the checkout's root; None for a file elsewhere."""
    start = f"{root}{os.sep}"
    return SourceLine(file.removeprefix(start), line or 0) if file.startswith(start) else None


def place_of_error(root: Path, error: BaseException) -> SourceLine | None:
    """Return the innermost line of the user's code in the traceback of ``error``."""
    if isinstance(error, SyntaxError) and error.filename:
        return place_below(root, error.filename, error.lineno)
    places = (place_below(root, frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__))
    return next((place for place in reversed(list(places)) if place is not None), None)


def refused_file(shown: str, reason: Reason, is_own: bool = False) -> RefusedFileError:
    """Return the error for the file ``shown``."""
    through = f" (loading {shown})" if reason.place is not None and reason.place.file != shown else ""
    reason = replace(reason, text=escape_control_characters(reason.text))
    error = RefusedFileError(
        escape_control_characters(f"{reason.place or shown} cannot become a DAG: {reason.text}{through}")
    )
    error.reason, error.is_own = reason, is_own
    return error


def reraise_refusal() -> None:
    """Raise a pending refusal or timeout again, where user code has caught all errors."""
    error = sys.exc_info()[1]
    if isinstance(error, (LoadAborted, OutOfTime)):
        raise error
