"""One table over evaluations: a row for each score, and one for each task without any.

If an evaluation has no record, the step writes the table of the others. Then it fails and names the missing ones, as a
comparison of runs does, and the next run makes them and the table again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.datasets.files import join, write_text
from tradewind.evaluation.evaluated import EVALUATIONS, Measured, Subject, check_paths, read_subjects
from tradewind.evaluation.results import Score
from tradewind.evaluation.summary import SCORE_COLUMNS, arrow, format_shots, score_cells, status_text
from tradewind.recipes.comparing.runs import missing_runs_error, missing_runs_section
from tradewind.steps.fields import PATH, TEXT, check_fields
from tradewind.text import as_csv, as_markdown, format_columns, format_time, markdown_text, single_line

COLUMNS: Final = (
    "label", "model", "model_path", "model_version", "evaluation", "task", "task_version", "num_fewshot", "metric",
    "higher_is_better", "score", "low", "high", "interval", "documents", "attempted", "scored", "errors", "coverage",
    "status", "error", "pooled_tasks", "chat_template_sha256", "started_at", "commit", "output_path",
)  # fmt: skip
"""Columns of ``results.csv`` and fields of ``results.jsonl``."""


@dataclass(frozen=True)
class CompileResultsConfig:
    """Evaluations of ``compile_table``."""

    evaluations: Mapping[str, Any]
    """Label → output of an evaluation, or a list of some, whose tasks have different names."""
    output_path: str
    """Gets ``results.jsonl``, ``.csv`` and ``.md``."""
    title: str = "Results"
    """Heading of the table."""

    def __post_init__(self) -> None:
        check_evaluations(self.evaluations)
        check_fields(self, output_path=PATH, title=TEXT)


def check_evaluations(given: Any) -> None:
    """Refuse what is no mapping of labels to evaluations; raises ``ValueError``."""
    EVALUATIONS.check("evaluations", given)
    for label, each in given.items():
        check_paths(f"evaluations[{label!r}]", each)


def compile_table(config: CompileResultsConfig) -> dict[str, Any]:
    """Write the three files; return the number of ``rows``, and ``scores``: label → task and metric → score.

    Raises:
        MissingRunsError: An evaluation has no record; the table of the others is written.
        ValueError: Two evaluations of one label have a task of one name.
    """
    subjects, missing = read_subjects(config.evaluations)
    rows = [row for subject in subjects for row in score_rows(subject)]
    if rows:
        table = markdown_rows(subjects)
        print("\n".join(format_columns(table)), flush=True)
        write_rows(join(config.output_path, "results"), COLUMNS, rows)
        parts = [f"# {markdown_text(config.title)}", as_markdown(table), *missing_runs_section(missing)]
        write_text(join(config.output_path, "results.md"), "\n\n".join(parts) + "\n")
    if missing:
        done = f"The others are in {join(config.output_path, 'results.md')}." if rows else ""
        raise missing_runs_error(len(config.evaluations), missing, done)
    return {"rows": len(rows), "scores": {subject.label: dict(_scores(subject)) for subject in subjects}}


def score_rows(subject: Subject) -> Iterator[dict[str, Any]]:
    """Yield a row for each score of a subject, and one for each task without any, with the fields of ``COLUMNS``."""
    for each in subject.measured():
        for score in each.task.scores or (None,):
            yield _row(subject.label, each, score)


def markdown_rows(subjects: Sequence[Subject]) -> list[list[str]]:
    """Return the table for users, head first."""
    rows = [["label", "model", "evaluated", "task", "version", "shots", "metric", *SCORE_COLUMNS]]
    for subject in subjects:
        for each in subject.measured():
            record, task = each.record, each.task
            own = [subject.label, single_line(record.model.name), format_time(record.started_at)]
            about = [single_line(each.name), single_line(task.task_version), format_shots(task)]
            for score in task.scores or (None,):
                metric = "" if score is None else f"{single_line(score.metric)}{arrow(score.higher_is_better)}"
                rows.append([*own, *about, metric, *score_cells(task, score)])
    return rows


def _row(label: str, measured: Measured, score: Score | None) -> dict[str, Any]:
    record, task = measured.record, measured.task
    values = {
        "label": label,
        "model": record.model.name,
        "model_path": record.model.path,
        "model_version": record.model.version,
        "evaluation": record.evaluation,
        "task": measured.name,
        "task_version": task.task_version,
        "num_fewshot": task.num_fewshot,
        "documents": task.num_documents,
        "status": status_text(task, score),
        "error": task.error,
        "pooled_tasks": ", ".join(task.members) or None,
        "chat_template_sha256": task.chat_template_sha256,
        "started_at": record.started_at,
        "commit": record.commit,
        "output_path": measured.path,
    }
    for field in ("metric", "higher_is_better", "low", "high", "interval", "attempted", "scored", "errors", "coverage"):
        values[field] = None if score is None else getattr(score, field)
    values["score"] = None if score is None else score.value
    return {column: values[column] for column in COLUMNS}


def _scores(subject: Subject) -> Iterator[tuple[str, float | None]]:
    for each in subject.measured():
        for score in each.task.scores:
            yield f"{each.name} {score.metric}", score.value


def write_rows(path: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows for programs, as ``path`` with the endings ``.jsonl`` and ``.csv``."""
    write_text(f"{path}.jsonl", "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
    cells = [["" if row[column] is None else single_line(row[column]) for column in columns] for row in rows]
    write_text(f"{path}.csv", as_csv([columns, *cells]))
