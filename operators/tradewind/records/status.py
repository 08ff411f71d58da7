"""The status of an output: one token in ``.executor_status`` beside it, as E20 writes it."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence
from enum import Enum

from tradewind.records.store import read_many, read_text, write_text

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


def status_path(output_path: str) -> str:
    """Where the status of ``output_path`` lies."""
    return posixpath.join(output_path, STATUS_FILE)


def read_status(output_path: str) -> Status | None:
    """The status of one output, or None when there is none."""
    text = read_text(status_path(output_path))
    return None if text is None else parse_status(text)


def read_statuses(output_paths: Sequence[str]) -> dict[str, Status]:
    """The statuses of those outputs that have one."""
    texts = read_many([status_path(path) for path in output_paths])
    statuses = {posixpath.dirname(path): parse_status(text) for path, text in texts.items()}
    return {path: status for path, status in statuses.items() if status is not None}


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
        except json.JSONDecodeError:
            event = line.strip()
        candidate = event.get("status") if isinstance(event, dict) else event
        token = candidate if isinstance(candidate, str) and candidate else token
    return Status(token) if token in Status.__members__ else None
