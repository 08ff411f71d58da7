"""Attempts at an output: files ``.attempts/N.json`` with what an attempt runs, its Ray job and its end.

The lease says which process may write the output. The process that holds the lease for an attempt also writes its file,
so that write needs no condition.

The claim chooses the submission ID of the Ray job and stores it in the file, so that submitting twice gives one job.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import posixpath
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Final

from tradewind.records.parsing import (
    COUNT,
    FLAG,
    OBJECT,
    RAW_TEXT,
    TEXT,
    FieldType,
    RecordFormatError,
    list_of,
    object_of,
    one_of,
    parse_fields,
    parse_object,
    replace_surrogates,
)
from tradewind.storage.bounded_read import Content
from tradewind.storage.errors import BadRecordError
from tradewind.storage.files import list_names, read_contents, write_text

logger = logging.getLogger(__name__)

ATTEMPTS_FOLDER = ".attempts"
_MAX_SLUG = 40
_STEP_JOB: Final = re.compile(r"[a-z0-9-]+-[0-9a-f]{8}-[0-9a-f]+-([1-9][0-9]{0,8})-[0-9a-f]{6}", re.ASCII)
_NUMBERED: Final = re.compile(r"([1-9][0-9]{0,8})\.json", re.ASCII)


class BadAttemptError(BadRecordError):
    """The file of an attempt cannot be read, so what it ran and how it ended are unknown."""


class AttemptOutcome(Enum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The function raised; ``error`` says what."""
    STOPPED = "stopped"
    """A user or another process stopped its job."""
    LOST = "lost"
    """It ended without a result and without an error of its function: its job or its lease was lost."""


_KINDS: Final[Mapping[str, FieldType]] = {
    "number": COUNT,
    "job": TEXT,
    "cluster": TEXT,
    "by": OBJECT,
    "spec": OBJECT,
    "inputs": object_of(TEXT.or_null()),
    "found": list_of(RAW_TEXT).or_null(),
    "withdraws": FLAG,
    "has_withdrawn": FLAG,
    "code_commit": TEXT.or_null(),
    "started_at": TEXT,
    "ended_at": TEXT,
    "outcome": one_of(outcome.value for outcome in AttemptOutcome).or_null(),
    "error": OBJECT.or_null(),
}
_REQUIRED: Final = ("number", "job", "cluster", "by", "spec")
_KINDS_OF_AN_ERROR: Final = {"type": RAW_TEXT, "message": RAW_TEXT, "traceback": RAW_TEXT}


@dataclass(frozen=True)
class AttemptError:
    """Error of an attempt: the exception's type and message, and the traceback as text."""

    type: str
    message: str
    traceback: str = ""

    @staticmethod
    def of(value: Any) -> AttemptError:
        """Return the error in parsed JSON.

        Raises:
            RecordFormatError: ``value`` is not an error.
        """
        known = parse_fields(value, _KINDS_OF_AN_ERROR, ("type", "message"), whose="its error's")
        return AttemptError(**{name: replace_surrogates(text) for name, text in known.items()})


@dataclass(frozen=True)
class Attempt:
    """One numbered execution of a step.

    Attributes:
        number: 1 for the first.
        job: The submission ID of its Ray job.
        cluster: The cluster of that job.
        by: The claimer: dag, run, task, map index and try, or the script.
        spec: What to run; see ``tradewind.serialization.spec``.
        inputs: Output path -> digest of the result that it reads there; None for one that Marin made.
        withdraws: It replaces a result, of which no file may stay.
        has_withdrawn: That result has been removed.
        code_commit: The Git commit of the code that travels, if there is one.
        found: Pre-existing files, relative to the output; never removed as leftovers.
        started_at: Time of the claim in ISO 8601, by the claimer's clock.
        ended_at: Time of the end, likewise.
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
    outcome: AttemptOutcome | None = None
    error: AttemptError | None = None

    def ended(self, outcome: AttemptOutcome, error: AttemptError | None = None) -> Attempt:
        """Return this attempt with its end."""
        return replace(self, outcome=outcome, error=error, ended_at=utc_now())

    def to_json(self) -> str:
        fields = asdict(self) | {"outcome": self.outcome.value if self.outcome else None}
        return json.dumps(fields, indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> Attempt:
        """Return the attempt in a file's text.

        Raises:
            RecordFormatError: The text is not an attempt.
        """
        known = parse_fields(parse_object(text), _KINDS, _REQUIRED)
        known["found"] = tuple(known.get("found") or ())
        outcome, error = known.get("outcome"), known.get("error")
        ends = {
            "outcome": None if outcome is None else AttemptOutcome(outcome),
            "error": None if error is None else AttemptError.of(error),
        }
        return Attempt(**{**known, **ends})


def utc_now() -> str:
    """Return the present time as attempts write it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def attempt_path(output_path: str, number: int) -> str:
    """Return the path of the file of attempt ``number``."""
    return posixpath.join(output_path, ATTEMPTS_FOLDER, f"{number}.json")


def attempt_folder(output_path: str, number: int) -> str:
    """Return the folder of the logs of attempt ``number``."""
    return posixpath.join(output_path, ATTEMPTS_FOLDER, str(number))


def step_job_id(name: str, output_path: str, version_hash: str, attempt: int) -> str:
    """Return a new submission ID for one attempt at a step: readable, and unique.

    Without the random suffix, an equal attempt whose records were deleted could have a job of the same ID.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_MAX_SLUG].strip("-") or "step"
    path_digest = hashlib.sha256(output_path.encode()).hexdigest()[:8]
    return f"{slug}-{path_digest}-{version_hash}-{attempt}-{secrets.token_hex(3)}"


def attempt_of_job(job: str) -> int | None:
    """Return the attempt in a submission ID of ``step_job_id``; None for another job."""
    found = _STEP_JOB.fullmatch(job)
    return int(found[1]) if found else None


def read_attempt(path: str) -> Attempt | None:
    """Return the attempt in the file ``path``, or None if there is no file.

    Raises:
        BadAttemptError: The file cannot be read as an attempt.
    """
    content = read_contents([path]).get(path)
    return None if content is None else parse_attempt(path, content)


def parse_attempt(path: str, content: Content) -> Attempt:
    """Return the attempt in the content of the file ``path``.

    Raises:
        BadAttemptError: The file cannot be read as an attempt.
    """
    try:
        if content.flaw is not None:
            raise RecordFormatError(content.flaw)
        attempt = Attempt.from_json(content.text)
        if posixpath.basename(path) != f"{attempt.number}.json":
            raise RecordFormatError("its number is not that of its file")
    except RecordFormatError as flaw:
        raise BadAttemptError(path, str(flaw)) from None
    return attempt


def read_attempt_or_none(output_path: str, number: int) -> Attempt | None:
    """Return an attempt, or None if its file is gone or unreadable; only for callers that can do without it."""
    file = attempt_path(output_path, number)
    try:
        return read_attempt(file)
    except BadAttemptError as error:
        logger.warning("%s", error)
        return None


def attempt_numbers(output_path: str) -> Sequence[int]:
    """Return the numbers of all attempts in order, including those with unreadable files."""
    matches = map(_NUMBERED.fullmatch, list_names(posixpath.join(output_path, ATTEMPTS_FOLDER)))
    return sorted(int(match[1]) for match in matches if match)


def newest_attempt(output_path: str) -> Attempt | None:
    """Return the attempt with the highest number, or None if there is none.

    Raises:
        BadAttemptError: Its file cannot be read.
    """
    numbers = attempt_numbers(output_path)
    return read_attempt(attempt_path(output_path, numbers[-1])) if numbers else None


def write_attempt(output_path: str, attempt: Attempt) -> Attempt:
    """Write the file of ``attempt``, as only the holder of its lease may."""
    write_text(attempt_path(output_path, attempt.number), attempt.to_json())
    return attempt
