"""The status of an output: one token in ``.executor_status`` beside it, as E20 writes it."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tradewind.storage.bounded import SMALL
from tradewind.storage.files import read_contents, write_text

STATUS_FILE = ".executor_status"


class Status(Enum):
    """What the last run of a step left behind."""

    SUCCESS = "SUCCESS"
    """The output is whole: read it, never make it again."""
    FAILED = "FAILED"
    """The function raised; what lies there is not a result."""
    RUNNING = "RUNNING"
    """Someone is at work, or died at it; what lies there is not a result."""
    DEP_FAILED = "DEP_FAILED"
    """An input failed (older executors wrote this)."""


@dataclass(frozen=True)
class NoStatus:
    """What lies in the place of a status and is none.

    Attributes:
        flaw: Why, in words that follow "because".
    """

    flaw: str


def status_path(output_path: str) -> str:
    """Where the status of ``output_path`` lies."""
    return posixpath.join(output_path, STATUS_FILE)


def read_status(output_path: str) -> Status | None:
    """The status of one output, or None when there is none, or what is there is no status."""
    found = read_statuses([output_path]).get(output_path)
    return found if isinstance(found, Status) else None


def read_statuses(output_paths: Sequence[str]) -> dict[str, Status | NoStatus]:
    """The statuses of those outputs that have one, and of those where something else lies in its place, why."""
    found = read_contents([status_path(path) for path in output_paths], SMALL)
    statuses: dict[str, Status | NoStatus] = {}
    for file, content in found.items():
        status = NoStatus(content.flaw) if content.flaw is not None else parse_status(content.text)
        if status is not None:
            statuses[posixpath.dirname(file)] = status
    return statuses


def write_status(output_path: str, status: Status) -> None:
    """Replace the status of ``output_path``."""
    write_text(status_path(output_path), status.value)


def parse_status(text: str) -> Status | None:
    """The status in a file's text; files of before February 2026 hold one JSON event a line, the last one counts.

    None for an empty file and for words that mean nothing here, such as the old ``WAITING``.
    """
    token = ""
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = line.strip()
        candidate = event.get("status") if isinstance(event, dict) else event
        token = candidate if isinstance(candidate, str) and candidate else token
    return Status(token) if token in Status.__members__ else None
