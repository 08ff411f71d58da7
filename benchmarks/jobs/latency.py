"""Latency from a task's start to its job's first line in the log, and to the task's end.

It is compared with the same job by ``ray job submit``, and with an empty task. Overhead is the rest of a task's time
after subtraction of both.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Goal, at_most, median
from benchmarks.jobs.environment import JobsEnvironment, TaskRun, printer
from benchmarks.report import Table, ratio, seconds

LINES_PER_SECOND = 2.0
BY_HAND = "ray job submit"
LONGEST_SHORT_JOB_S = 10
MOST_OVERHEAD_S = 1.0
END_SEEN_S = 2.0


@dataclass(frozen=True)
class Latency:
    """Medians of some runs of one way, in seconds."""

    way: str
    job_seconds: int
    repeats: int
    first_line: float | None
    first_lag: float | None
    end_seen: float | None
    end: float
    own_task: float
    """Duration of an empty task of the same kind in the same Airflow."""

    def overhead(self, by_hand: Latency) -> float:
        """Return the task's time beyond ``ray job submit`` and the empty task."""
        return self.end - by_hand.end - self.own_task


def latencies_of(environment: JobsEnvironment, job_seconds: Sequence[int], repeats: int) -> Iterator[Latency]:
    """Measure every way of one provider, one job at a time; long jobs once, slow ways only if repeats are wanted."""
    environment.run_job(environment.provider.ways[0].dag_id, 1)  # the first one also loads what all of them need
    empty = "plain_deferred" if environment.provider.defers else "plain"
    own = median(environment.run_job(empty).end for _ in range(max(repeats, 2))) or 0.0
    for length in job_seconds:
        for way in environment.provider.ways:
            if way.is_slow and (repeats == 1 or length > LONGEST_SHORT_JOB_S):
                continue
            times = 1 if way.is_slow else _times(length, repeats)
            runs = [environment.run_job(way.dag_id, *_lines(length)) for _ in range(times)]
            yield median_of(way.name, length, runs, own)


def by_hand(address: str, job_seconds: Sequence[int], repeats: int) -> Iterator[Latency]:
    """Measure the same jobs with Ray's command line."""
    for length in job_seconds:
        runs = [_submit(address, *_lines(length)) for _ in range(_times(length, repeats))]
        yield median_of(BY_HAND, length, runs, 0.0)


def median_of(way: str, job_seconds: int, runs: Sequence[TaskRun], own_task: float) -> Latency:
    """Return the medians of the runs; without a first line in one of them, that median is None."""
    has_all = all(run.first_line is not None for run in runs)
    return Latency(
        way,
        job_seconds,
        len(runs),
        first_line=median(run.first_line for run in runs) if has_all else None,
        first_lag=median(run.first_lag for run in runs) if has_all else None,
        end_seen=median(run.end_seen for run in runs),
        end=median(run.end for run in runs) or 0.0,
        own_task=own_task,
    )


def latency_table(measured: Sequence[Latency], job_seconds: Sequence[int]) -> Table:
    """Return a row for every way, compared with Tradewind and Ray's command line."""
    table = Table(
        "jobs: from the task's start to the job's first line in the task's log, and to the task's end (medians)",
        (
            "way", "job", "runs", "first line", "÷ ours", "on its way", "end seen", "end", "÷ ours", "empty task",
            "overhead",
        ),
        notes=(
            "on its way: from the first line's print to its place in the log. end seen: from the job's end to its",
            "trigger's event. empty task: a task that does nothing but what the way does too (start; or start, defer,",
            "resume), by the same Airflow.",
            f"overhead: end less `{BY_HAND}` less empty task. google follows in the worker, the others do not.",
            "google polls every 5 s; astro every 60 s by default, and 1 s is its minimum.",
        ),
    )  # fmt: skip
    for length in job_seconds:
        rows = [row for row in measured if row.job_seconds == length]
        hand = next((row for row in rows if row.way == BY_HAND), None)
        ours = next((row for row in rows if row.way == "ours"), None)
        for row in sorted(rows, key=lambda row: (row.way != BY_HAND, row.way != "ours")):
            table.add(*_cells(row, hand, ours))
    return table


def latency_goals(measured: Sequence[Latency]) -> Iterator[Goal]:
    """Yield the limits of Tradewind's overhead, and of the time until it notices a job's end."""
    hands = {row.job_seconds: row for row in measured if row.way == BY_HAND}
    for row in measured:
        if row.way == "ours" and (hand := hands.get(row.job_seconds)):
            what = f"overhead beyond `{BY_HAND}` and an empty task, {row.job_seconds} s job"
            yield at_most(what, row.overhead(hand), MOST_OVERHEAD_S, "{:+.2f} s".format)
        if row.way == "ours" and row.end_seen is not None:
            yield at_most(f"from the end of a {row.job_seconds} s job to its trigger's event", row.end_seen, END_SEEN_S)


def _cells(row: Latency, hand: Latency | None, ours: Latency | None) -> list[str]:
    is_hand = row.way == BY_HAND
    return [
        row.way,
        f"{row.job_seconds} s",
        str(row.repeats),
        _or_dash(row.first_line),
        ratio(row.first_line, ours.first_line) if ours and row.first_line and ours.first_line else "-",
        _or_dash(row.first_lag),
        "-" if row.end_seen is None else seconds(row.end_seen),
        seconds(row.end),
        ratio(row.end, ours.end) if ours else "-",
        "-" if is_hand else seconds(row.own_task),
        "-" if is_hand or hand is None else f"{row.overhead(hand):+.2f} s",
    ]


def _or_dash(value: float | None) -> str:
    return "never" if value is None else seconds(value)


def _times(job_seconds: int, repeats: int) -> int:
    return repeats if job_seconds <= LONGEST_SHORT_JOB_S else 1


def _lines(job_seconds: int) -> tuple[int, float]:
    return int(job_seconds * LINES_PER_SECOND), LINES_PER_SECOND


def _submit(address: str, lines: int, rate: float) -> TaskRun:
    """Measure ``ray job submit`` from its start to its exit."""
    command = [str(Path(sys.executable).with_name("ray")), "job", "submit", "--address", address, "--"]
    started, first, lag = time.time(), None, None
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", "RAY_AUTH_MODE": "disabled", "NO_PROXY": "127.0.0.1"}
    command += shlex.split(printer(lines, rate))
    with subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if first is None and line.startswith("bench-line"):
                first = time.time() - started
                lag = time.time() - float(line.split()[2])
    if process.returncode:
        raise RuntimeError(f"`{' '.join(command)}` ended with exit code {process.returncode}.")
    return TaskRun(first_line=first, first_lag=lag, end=time.time() - started, end_seen=None, lines=[])
