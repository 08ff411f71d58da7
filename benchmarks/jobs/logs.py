"""Lines of a job in a task's log, read from Airflow's log files, with the times of their print and log record."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.jobs.printer import PADDING

_LINE = re.compile(rf"bench-line (\d{{7}}) (\d+\.\d{{6}}) {re.escape(PADDING)}")
_FIRED = '"Trigger fired event"'


@dataclass(frozen=True)
class LoggedLine:
    """One line of a job: its number, when it was printed and when it was logged, in seconds since 1970."""

    number: int
    printed: float
    logged: float


def lines_of_task(logs: Path, dag_id: str, run_id: str, task_id: str) -> list[LoggedLine]:
    """Return all lines of the task's job in logged order, from the worker's and the triggerer's files."""
    seen = lines_in(_records(logs, dag_id, run_id, task_id))
    return sorted(seen, key=lambda line: line.logged)  # stable: lines of one moment stay in the file's order


def fired_at(logs: Path, dag_id: str, run_id: str, task_id: str) -> float | None:
    """Return when the task's last trigger fired, in seconds since 1970, by Airflow's line; None if never."""
    fired = [record for record in _records(logs, dag_id, run_id, task_id) if _FIRED in record]
    return datetime.fromisoformat(json.loads(fired[-1])["timestamp"]).timestamp() if fired else None


def _records(logs: Path, dag_id: str, run_id: str, task_id: str) -> list[str]:
    folder = logs / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={task_id}"
    files = sorted(folder.glob("attempt=*.log*"), key=lambda file: file.stat().st_mtime)
    return [record for file in files for record in file.read_text(errors="replace").splitlines()]


def lines_in(records: Iterable[str]) -> Iterator[LoggedLine]:
    """Yield the job's lines in these log records; a record may hold many of them, or be truncated."""
    for record in records:
        try:
            fields = json.loads(record)
            logged = datetime.fromisoformat(fields["timestamp"]).timestamp()
        except (ValueError, KeyError, TypeError):
            continue
        for number, printed in _LINE.findall(str(fields.get("event"))):
            yield LoggedLine(int(number), float(printed), logged)
