"""Attempts at an output: numbered files ``.attempts/N.json`` that say what runs under which Ray job and how it ended.

An attempt is claimed by creating its file, which only one of many claimants can do; its job id is part of the file,
so everybody who comes later finds the same job. A new attempt is claimed only when the newest one has ended.
"""

from __future__ import annotations

import json
import posixpath
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from tradewind.records.store import create_text, list_names, read_json, write_text

ATTEMPTS_FOLDER = ".attempts"


class Outcome(Enum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The function raised; ``error`` says what."""
    STOPPED = "stopped"
    """Somebody stopped its job."""
    LOST = "lost"
    """Its job is gone without having said how it ended."""


@dataclass(frozen=True)
class AttemptError:
    """What an attempt failed with: the exception's type and message, and the traceback as text."""

    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True)
class Attempt:
    """One try at a step.

    Attributes:
        number: 1 for the first.
        job: The submission id of its Ray job.
        cluster: The cluster that it was given to.
        by: Who started it: dag, run, task, map index and try, or the script.
        spec: What to run; see ``tradewind.runtime.spec``.
    """

    number: int
    job: str
    cluster: str
    by: dict[str, Any]
    spec: dict[str, Any]
    outcome: Outcome | None = None
    error: AttemptError | None = None

    def ended(self, outcome: Outcome, error: AttemptError | None = None) -> Attempt:
        """This attempt with its end."""
        return replace(self, outcome=outcome, error=error)

    def to_json(self) -> str:
        fields = asdict(self) | {"outcome": self.outcome.value if self.outcome else None}
        return json.dumps(fields, indent=2) + "\n"

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Attempt:
        """The attempt in a parsed file."""
        outcome, error = fields.get("outcome"), fields.get("error")
        return Attempt(
            **{key: fields[key] for key in ("number", "job", "cluster", "by", "spec")},
            outcome=Outcome(outcome) if outcome else None,
            error=AttemptError(**error) if error else None,
        )


def attempt_path(output_path: str, number: int) -> str:
    """The file of attempt ``number``."""
    return posixpath.join(output_path, ATTEMPTS_FOLDER, f"{number}.json")


def attempt_folder(output_path: str, number: int) -> str:
    """Where the logs of attempt ``number`` lie."""
    return posixpath.join(output_path, ATTEMPTS_FOLDER, str(number))


def read_attempt(path: str) -> Attempt | None:
    """The attempt in the file ``path``, or None when there is none."""
    fields = read_json(path)
    return None if fields is None else Attempt.from_json(fields)


def newest_attempt(output_path: str) -> Attempt | None:
    """The attempt with the highest number, or None when there was none."""
    names = list_names(posixpath.join(output_path, ATTEMPTS_FOLDER))
    numbers = [int(stem) for stem, dot, extension in (name.partition(".") for name in names) if extension == "json"]
    return read_attempt(attempt_path(output_path, max(numbers))) if numbers else None


def claim_attempt(output_path: str, attempt: Attempt) -> Attempt:
    """Create the file of ``attempt``; if someone else was faster, return theirs."""
    path = attempt_path(output_path, attempt.number)
    if create_text(path, attempt.to_json()):
        return attempt
    theirs = read_attempt(path)
    assert theirs is not None, f"{path} existed a moment ago and attempts are never deleted"
    return theirs


def end_attempt(output_path: str, attempt: Attempt, outcome: Outcome, error: AttemptError | None = None) -> Attempt:
    """Write down how ``attempt`` ended."""
    ended = attempt.ended(outcome, error)
    write_text(attempt_path(output_path, attempt.number), ended.to_json())
    return ended
