"""A job's lines as they stand in a task's log, read from Airflow's own log files: which came, how often, and when."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.jobs_printer import PADDING

_LINE = re.compile(rf"bench-line (\d{{7}}) (\d+\.\d{{6}}) {re.escape(PADDING)}")
_FIRED = '"Trigger fired event"'


@dataclass(frozen=True)
class Seen:
    """One line of a job: its number, when it was printed and when it was logged, in seconds since 1970."""

    number: int
    printed: float
    logged: float


@dataclass(frozen=True)
class Carried:
    """What became of the lines of one job."""

    printed: int
    lost: int
    repeated: int
    in_order: bool
    lines_per_second: float
    """From the first line's print to the last line's log."""
    last_lag: float
    """Seconds from the last line's print to its place in the log."""


def lines_of_task(logs: Path, dag_id: str, run_id: str, task_id: str) -> list[Seen]:
    """Every line of the task's job, in the order in which they were logged; the worker's and the triggerer's files."""
    seen = lines_in(_records(logs, dag_id, run_id, task_id))
    return sorted(seen, key=lambda line: line.logged)  # stable: lines of one moment stay in the file's order


def fired_at(logs: Path, dag_id: str, run_id: str, task_id: str) -> float | None:
    """When the task's last trigger fired, in seconds since 1970, by Airflow's own line; None if it has had none."""
    fired = [record for record in _records(logs, dag_id, run_id, task_id) if _FIRED in record]
    return datetime.fromisoformat(json.loads(fired[-1])["timestamp"]).timestamp() if fired else None


def _records(logs: Path, dag_id: str, run_id: str, task_id: str) -> list[str]:
    folder = logs / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={task_id}"
    files = sorted(folder.glob("attempt=*.log*"), key=lambda file: file.stat().st_mtime)
    return [record for file in files for record in file.read_text(errors="replace").splitlines()]


def lines_in(records: Iterable[str]) -> Iterator[Seen]:
    """The job's lines in these log records; a record may hold many of them, or be cut off."""
    for record in records:
        try:
            fields = json.loads(record)
            logged = datetime.fromisoformat(fields["timestamp"]).timestamp()
        except (ValueError, KeyError, TypeError):
            continue
        for number, printed in _LINE.findall(str(fields.get("event"))):
            yield Seen(int(number), float(printed), logged)


def carried(seen: Sequence[Seen], printed: int) -> Carried:
    """Count what was ``seen`` of the lines 0 to ``printed`` - 1."""
    times = Counter(line.number for line in seen)
    numbers = [line.number for line in seen]
    took = max((line.logged for line in seen), default=0.0) - min((line.printed for line in seen), default=0.0)
    return Carried(
        printed=printed,
        lost=printed - len(times),
        repeated=len(seen) - len(times),
        in_order=numbers == sorted(numbers),
        lines_per_second=len(times) / took if took > 0 else 0.0,
        last_lag=seen[-1].logged - seen[-1].printed if seen else float("inf"),
    )
