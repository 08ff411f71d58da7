"""Errors of the fleet and problems of its files, each problem with its line and in one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from tradewind.text import escape_control_characters

_MAX_PROBLEMS = 200
"""Problems of one file that a message has."""
_MAX_CHARS = 1000


class FleetError(ValueError):
    """The request to the fleet cannot be fulfilled in its current state."""

    def __init__(self, message: str) -> None:
        super().__init__(escape_control_characters(message))


class UnknownClusterError(FleetError):
    """The fleet file describes no cluster of this name."""


@dataclass(frozen=True, order=True)
class FileProblem:
    """One thing to mend in a file: the line, counted from 1, and what is wrong and what to do, in one sentence."""

    line: int
    sentence: str


class BadFileError(FleetError):
    """A file cannot be used: each line of the message names the file, the line and what to do about it."""

    def __init__(self, file: str, problems: Iterable[FileProblem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        lines = (f"{file}:{problem.line}: {problem.sentence[:_MAX_CHARS]}" for problem in self.problems[:_MAX_PROBLEMS])
        super().__init__("\n".join(map(on_one_line, lines)))


def on_one_line(text: str) -> str:
    """Escape unprintable characters of an untrusted text, so that a sentence can quote it."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def nearest_files_hint(file: Path) -> str:
    """Return a hint at the file with the nearest name beside a missing ``file``; empty if there is none."""
    try:
        if file.exists():
            return ""
        files = {each.stem: each for each in file.parent.iterdir() if each.is_file()}
    except OSError:
        return ""
    near = get_close_matches(file.stem, files, n=1)  # endings are alike in any case
    return f" (did you mean {files[near[0]]}?)" if near else ""


def nearest_names_hint(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown ``name``: the nearest known names, else all."""
    names = list(known)
    if near := get_close_matches(name, names, n=3):
        return f"did you mean {' or '.join(near)}?"
    return f"there is only {', '.join(names)}." if names else "there is none."
