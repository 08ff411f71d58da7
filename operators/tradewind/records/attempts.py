"""Attempts at an output: numbered files ``.attempts/N.json`` that say what runs under which Ray job and how it ended.

The lease says whose turn it is; the file of an attempt is its story. It is written by whoever holds the lease for that
attempt, so nobody needs to write it under conditions.
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
_NUMBERED: Final = re.compile(r"([1-9][0-9]{0,8})\.json", re.ASCII)


class BadAttemptError(BadRecordError):
    """The file of an attempt cannot be read: what it ran and how it ended is not known."""


class AttemptOutcome(Enum):
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

    @staticmethod
    def of(value: Any) -> AttemptError:
        """The error in parsed JSON.

        Raises:
            RecordFormatError: It is none.
        """
        known = parse_fields(value, _KINDS_OF_AN_ERROR, ("type", "message"), whose="its error's")
        return AttemptError(**{name: replace_surrogates(text) for name, text in known.items()})


@dataclass(frozen=True)
class Attempt:
    """One try at a step.

    Attributes:
        number: 1 for the first.
        job: The submission id of its Ray job.
        cluster: The cluster that it was given to.
        by: Who started it: dag, run, task, map index and try, or the script.
        spec: What to run; see ``tradewind.serialization.spec``.
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
    outcome: AttemptOutcome | None = None
    error: AttemptError | None = None

    def ended(self, outcome: AttemptOutcome, error: AttemptError | None = None) -> Attempt:
        """This attempt with its end."""
        return replace(self, outcome=outcome, error=error, ended_at=utc_now())

    def to_json(self) -> str:
        fields = asdict(self) | {"outcome": self.outcome.value if self.outcome else None}
        return json.dumps(fields, indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> Attempt:
        """The attempt in a file's text.

        Raises:
            RecordFormatError: It is none.
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
    """The present moment as attempts write it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def attempt_path(output_path: str, number: int) -> str:
    """The file of attempt ``number``."""
    return posixpath.join(output_path, ATTEMPTS_FOLDER, f"{number}.json")


def attempt_folder(output_path: str, number: int) -> str:
    """Where the logs of attempt ``number`` lie."""
    return posixpath.join(output_path, ATTEMPTS_FOLDER, str(number))


def read_attempt(path: str) -> Attempt | None:
    """The attempt in the file ``path``, or None when there is none.

    Raises:
        BadAttemptError: What is there tells of no attempt.
    """
    found = read_contents([path]).get(path)
    return None if found is None else parse_attempt(path, found)


def parse_attempt(path: str, found: Content) -> Attempt:
    """The attempt in what was found at ``path``.

    Raises:
        BadAttemptError: It tells of none.
    """
    try:
        if found.flaw is not None:
            raise RecordFormatError(found.flaw)
        attempt = Attempt.from_json(found.text)
        if posixpath.basename(path) != f"{attempt.number}.json":
            raise RecordFormatError("its number is not that of its file")
    except RecordFormatError as flaw:
        raise BadAttemptError(path, str(flaw)) from None
    return attempt


def read_attempt_or_none(output_path: str, number: int) -> Attempt | None:
    """The attempt of this number, or None where its file is gone or cannot be read: nothing may depend on it then."""
    file = attempt_path(output_path, number)
    try:
        return read_attempt(file)
    except BadAttemptError as error:
        logger.warning("%s", error)
        return None


def attempt_numbers(output_path: str) -> Sequence[int]:
    """The numbers of all attempts, in order, also of those whose files cannot be read."""
    matches = map(_NUMBERED.fullmatch, list_names(posixpath.join(output_path, ATTEMPTS_FOLDER)))
    return sorted(int(match[1]) for match in matches if match)


def newest_attempt(output_path: str) -> Attempt | None:
    """The attempt with the highest number, or None when there was none.

    Raises:
        BadAttemptError: Its file cannot be read.
    """
    numbers = attempt_numbers(output_path)
    return read_attempt(attempt_path(output_path, numbers[-1])) if numbers else None


def write_attempt(output_path: str, attempt: Attempt) -> Attempt:
    """Write the story of ``attempt`` as it stands; only the holder of its turn does."""
    write_text(attempt_path(output_path, attempt.number), attempt.to_json())
    return attempt


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

# Submission ids, made when an attempt is claimed and kept in its file, so that submitting it twice gives one job.

_LONGEST_SLUG = 40


def step_job_id(name: str, output_path: str, version_hash: str, attempt: int) -> str:
    """A new id for one attempt at a step: readable, and never given twice.

    The random end keeps an attempt from meeting the job of an equal one whose records were deleted meanwhile.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST_SLUG].strip("-") or "step"
    place = hashlib.sha256(output_path.encode()).hexdigest()[:8]
    return f"{slug}-{place}-{version_hash}-{attempt}-{secrets.token_hex(3)}"
