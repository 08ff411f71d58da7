"""The scores of evaluations as text: cells of tables, and the summary of one evaluation in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tradewind.evaluation.results import EvaluationRecord, Score, Status, TaskRecord
from tradewind.evaluation.samples import SampleRows, sample_rows
from tradewind.evaluation.scores import MIN_COVERAGE
from tradewind.text import as_markdown, format_columns, format_duration, format_time, markdown_text, single_line

SCORE_COLUMNS: Final = ("score", "95 % interval", "documents", "status")
MAX_TABLE_ROWS: Final = 2_000
MAX_CELL_CHARS: Final = 2_000
_GROUP: Final = "A group's score is that of all documents of its tasks together, not a mean of their scores."
_INTERVALS: Final = "Documents without a score count in the interval at their worst and at their best."


def score_cells(task: TaskRecord, score: Score | None) -> list[str]:
    """Return the cells of ``SCORE_COLUMNS`` for a score; None for a task without any."""
    if score is None:
        return ["", "", "", status_text(task, None)]
    documents = f"{score.scored:,} of {task.num_documents:,}"
    return [format_number(score.value), format_interval(score.low, score.high), documents, status_text(task, score)]


def status_text(task: TaskRecord, score: Score | None) -> str:
    """Return the status of a score in words."""
    if task.status in (Status.FAILED, Status.INFRASTRUCTURE_LOST):
        return task.status.replace("_", " ")
    if score is None and task.status is Status.SUCCEEDED:  # a group whose tasks share no metric
        return "no score"
    return str(Status.INCOMPLETE if score is None or score.value is None else Status.SUCCEEDED)


def format_number(value: float | None) -> str:
    """Format a score with four digits."""
    return "" if value is None else f"{value:.4g}" if abs(value) >= 1 else f"{value:.4f}"


def format_interval(low: float | None, high: float | None) -> str:
    """Format an interval; nothing without one."""
    return "" if low is None or high is None else f"{format_number(low)} to {format_number(high)}"


def format_shots(task: TaskRecord) -> str:
    """Format the number of examples in a prompt."""
    return "" if task.num_fewshot is None else f"{task.num_fewshot}"


def summary_rows(record: EvaluationRecord) -> list[list[str]]:
    """Return the table of the scores of an evaluation, head first, groups last."""
    rows = [["task", "version", "shots", "metric", *SCORE_COLUMNS]]
    for name, task in record.entries():
        label = f"{single_line(name)} ({len(task.members)} tasks)" if task.members else single_line(name)
        for score in task.scores or (None,):
            metric = "" if score is None else f"{single_line(score.metric)}{arrow(score.higher_is_better)}"
            rows.append([label, single_line(task.task_version), format_shots(task), metric, *score_cells(task, score)])
    return rows


def summary_text(record: EvaluationRecord) -> str:
    """Return the table of the scores, and what is missing, for a log."""
    return "\n".join([*format_columns(summary_rows(record)), *_missing(record)])


def _missing(record: EvaluationRecord) -> list[str]:
    """Return why documents, tasks and groups have no score."""
    return [f"{single_line(name)}: {task.error}" for name, task in record.entries() if task.error]


def arrow(higher_is_better: bool | None) -> str:
    """Return the sign for the better direction of a metric; nothing if it is unknown."""
    return "" if higher_is_better is None else " ↑" if higher_is_better else " ↓"


def summary_markdown(record: EvaluationRecord) -> str:
    """Return ``summary.md``."""
    parts = [
        f"# {markdown_text(record.model.name)}: {markdown_text(record.evaluation)}",
        "\n".join(f"- {markdown_text(fact)}" for fact in _facts(record)),
    ]
    if record.tasks:
        parts += [as_markdown(summary_rows(record)), f"{_INTERVALS} {_GROUP}" if record.groups else _INTERVALS]
    if missing := [f"- {markdown_text(line)}" for line in _missing(record)]:
        least = f"Below {MIN_COVERAGE:.0%} of the documents there is no number."
        parts += ["## What is missing", least, "\n".join(missing)]
    return "\n\n".join(parts) + "\n"


def _facts(record: EvaluationRecord) -> Iterator[str]:
    yield f"Status: {record.status.replace('_', ' ')}{f': {record.error}' if record.error else ''}"
    yield _model_fact(record)
    serving = record.serving
    served = [" ".join(filter(None, (serving.engine, serving.version))), *filter(None, [serving.hardware])]
    yield f"Served by: {', '.join(served)}"
    if record.harness_version:
        yield f"Harness: {record.evaluation} {record.harness_version}"
    if record.commit:
        yield f"Commit: {record.commit}"
    pause = f", of which {format_duration(record.paused_s)} paused" if record.paused_s else ""
    yield f"From {format_time(record.started_at)}, {format_duration(record.ended_at - record.started_at)}{pause}"
    speed = f", {record.tokens_per_second:,.0f} tokens/s" if record.tokens_per_second is not None else ""
    yield f"{record.requests:,} requests, {record.cached:,} of them answered by an earlier attempt{speed}"


def _model_fact(record: EvaluationRecord) -> str:
    version = f", version {record.model.version}" if record.model.version else ""
    return f"Model: {record.model.path}{version}"


@dataclass(frozen=True)
class ScoreRow:
    """A score of a task, or of a group of tasks, as a row of a table.

    Attributes:
        members: How many tasks a group has; 0 for a task.
        metric: Empty if there is no score.
        low, high: Ends of the 95 % interval.
        scored, documents: Documents with a score, and all of them.
        status: In words.
        error: Why documents have no score.
        samples: Where its answers are; None for a group, whose tasks have rows of their own.
    """

    task: str
    members: int
    version: str
    shots: int | None
    metric: str
    value: float | None
    low: float | None
    high: float | None
    scored: int
    documents: int
    higher_is_better: bool | None
    status: str
    error: str | None
    samples: SampleRows | None


@dataclass(frozen=True)
class ScoreTable:
    """The scores of an evaluation, groups last.

    Attributes:
        status, error: Of the whole evaluation.
        model_path: Where the model is; ``is_model_stored`` says whether that is a path, and not a model of a hub.
        facts: With what and when it was measured, in sentences.
        left_out: How many rows are missing.
    """

    evaluation: str
    status: str
    error: str | None
    model: str
    model_path: str
    is_model_stored: bool
    facts: tuple[str, ...]
    rows: tuple[ScoreRow, ...]
    left_out: int


def score_table(output_path: str, record: EvaluationRecord) -> ScoreTable:
    """Return the scores of an evaluation for a page."""
    rows = [row for name, task in record.entries() for row in _score_rows(output_path, name, task)]
    path = single_line(record.model.path, MAX_CELL_CHARS)
    return ScoreTable(
        single_line(record.evaluation),
        record.status.replace("_", " "),
        record.error and single_line(record.error, MAX_CELL_CHARS),
        single_line(record.model.name),
        path,
        path == record.model.path and ("://" in path or path.startswith("/")),
        tuple(single_line(fact, MAX_CELL_CHARS) for fact in _facts(record) if fact != _model_fact(record)),
        tuple(rows[:MAX_TABLE_ROWS]),
        max(0, len(rows) - MAX_TABLE_ROWS),
    )


def _score_rows(output_path: str, name: str, task: TaskRecord) -> Iterator[ScoreRow]:
    error = single_line(task.error, MAX_CELL_CHARS) if task.error else None
    for score in task.scores or (None,):
        value, low, high = (score.value, score.low, score.high) if score is not None else (None, None, None)
        yield ScoreRow(
            single_line(name),
            len(task.members),
            single_line(task.task_version),
            task.num_fewshot,
            single_line(score.metric) if score is not None else "",
            value,
            low,
            high,
            score.scored if score is not None else 0,
            task.num_documents,
            score.higher_is_better if score is not None else None,
            status_text(task, score),
            error,
            sample_rows(output_path, name, task, score),
        )
