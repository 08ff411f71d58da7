"""Attempts at an output: numbered files ``.attempts/N.json`` that say what runs under which Ray job and how it ended.

The lease says whose turn it is; the file of an attempt is its story. It is written by whoever holds the lease for that
attempt, so nobody needs to write it under conditions.
"""

from __future__ import annotations

import datetime
import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from tradewind.records.store import list_names, read_json, write_text

ATTEMPTS_FOLDER = ".attempts"


class Outcome(Enum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The function raised; ``error`` says what."""
    STOPPED = "stopped"
    """Somebody stopped its job."""
    LOST = "lost"
    """It ended without a result and without a fault of its function: its job is gone, or its turn was over."""


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
        inputs: Output path -> digest of the result that it reads there; None for one that Marin made.
        withdraws: It replaces a finished output, of which nothing may be kept.
        has_withdrawn: That output has been removed.
        code_commit: The Git commit of the code that travels, where there is one.
        found: What lay at the output before the first attempt, relative to it: never removed as a leftover.
        started_at: When it was claimed, in ISO 8601, by the clock of the claimant.
        ended_at: The same for its end.
    """

    number: int
    job: str
    cluster: str
    by: dict[str, Any]
    spec: dict[str, Any]
    inputs: Mapping[str, str | None] = field(default_factory=dict)
    withdraws: bool = False
    has_withdrawn: bool = False
    code_commit: str | None = None
    found: tuple[str, ...] = ()
    started_at: str = ""
    ended_at: str = ""
    outcome: Outcome | None = None
    error: AttemptError | None = None

    def ended(self, outcome: Outcome, error: AttemptError | None = None) -> Attempt:
        """This attempt with its end."""
        return replace(self, outcome=outcome, error=error, ended_at=utc_now())

    def to_json(self) -> str:
        fields = asdict(self) | {"outcome": self.outcome.value if self.outcome else None}
        return json.dumps(fields, indent=2) + "\n"

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Attempt:
        """The attempt in a parsed file."""
        outcome, error = fields.get("outcome"), fields.get("error")
        known = {name: fields[name] for name in Attempt.__dataclass_fields__ if name in fields}
        known["found"] = tuple(fields.get("found") or ())
        ends = {"outcome": Outcome(outcome) if outcome else None, "error": AttemptError(**error) if error else None}
        return Attempt(**{**known, **ends})


def utc_now() -> str:
    """The present moment as attempts write it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


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


def attempt_numbers(output_path: str) -> Sequence[int]:
    """The numbers of all attempts, in order."""
    names = list_names(posixpath.join(output_path, ATTEMPTS_FOLDER))
    stems = (stem for stem, _, extension in (name.partition(".") for name in names) if extension == "json")
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def newest_attempt(output_path: str) -> Attempt | None:
    """The attempt with the highest number, or None when there was none."""
    numbers = attempt_numbers(output_path)
    return read_attempt(attempt_path(output_path, numbers[-1])) if numbers else None


def write_attempt(output_path: str, attempt: Attempt) -> Attempt:
    """Write the story of ``attempt`` as it stands; only the holder of its turn does."""
    write_text(attempt_path(output_path, attempt.number), attempt.to_json())
    return attempt
