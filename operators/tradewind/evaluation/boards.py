"""Boards of all evaluations below a prefix: for each task and metric the scores with their intervals, the best first.

No rank is given: whether one score is better than another is known only by their difference, paired by document, which
the step ``leaderboard`` computes. Nothing is averaged over tasks. A score with too few documents has no number here,
and comes last with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tradewind.evaluation.evaluated import Measured, Subject, record_contents
from tradewind.evaluation.leaderboard import by_question, metrics_of, ranking_title
from tradewind.evaluation.results import EvaluationRecord, Score, record_in
from tradewind.evaluation.samples import SampleRows, sample_rows
from tradewind.evaluation.summary import status_text
from tradewind.records.parsing import RecordFormatError
from tradewind.storage.bounded_read import value_count
from tradewind.text import single_line

MAX_EVALUATIONS: Final = 500
MAX_BOARDS: Final = 500
MAX_SCORES: Final = 20_000
"""Bound for the scores of all boards together."""
_MAX_BYTES: Final = 16 << 20
"""Of all records, which are in memory together; one of 40 tasks has some 30 kB."""
_MAX_VALUES: Final = 200_000
"""Values in a record: a small one takes 200 bytes of memory when it is parsed."""


@dataclass(frozen=True)
class BoardScore:
    """One score.

    Attributes:
        label: Output path of its evaluation, relative to the prefix.
        evaluation: The harness.
        value, low, high: The score and its 95 % interval; None where the harness gives none.
        scored, documents: Number of documents with a score, and of all.
        coverage: Scored documents as a share of all.
        status: ``succeeded``, or why the score has no number: such as ``incomplete`` below 90 % coverage.
        problem: The error of the task, if any.
        started_at: In seconds since 1970.
        commit: Commit of the code, if it is known.
        samples: Where its answers are; None for a group of tasks.
    """

    label: str
    output_path: str
    model: str
    evaluation: str
    value: float | None
    low: float | None
    high: float | None
    scored: int
    documents: int
    coverage: float
    status: str
    problem: str
    started_at: float
    commit: str | None
    samples: SampleRows | None


@dataclass(frozen=True)
class Board:
    """All scores that answer one question: the same task of the same version, with as many examples in the prompt.

    Attributes:
        title: Such as ``arc_easy acc ↑ (version 1, 10 shots)``.
        higher_is_better: None if the harness does not say; then the scores are in order of their labels.
        pooled_tasks: Number of tasks whose documents are pooled; 0 for a single task. It is no mean of their scores.
    """

    title: str
    task: str
    metric: str
    higher_is_better: bool | None
    pooled_tasks: int
    scores: tuple[BoardScore, ...]


@dataclass(frozen=True)
class EvaluationBoards:
    """Boards by task and metric.

    Attributes:
        problems: Sentences that say which records cannot be read, and what is left out.
    """

    boards: tuple[Board, ...]
    problems: tuple[str, ...]


def read_boards(prefix: str, output_paths: Sequence[str]) -> EvaluationBoards:
    """Read the evaluations among these outputs, at most ``MAX_EVALUATIONS``, and return their boards.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    records: dict[str, EvaluationRecord] = {}
    problems: list[str] = []
    left = _MAX_BYTES
    for path, content in record_contents(output_paths):
        left -= len(content.text)
        if len(records) == MAX_EVALUATIONS or left < 0:
            problems.append(f"The first {len(records)} evaluations are shown: narrow the prefix to see the others.")
            break
        try:
            if value_count(content.text) > _MAX_VALUES:
                raise RecordFormatError(f"it holds more than {_MAX_VALUES:,} values")
            records[path] = record_in(content)
        except RecordFormatError as flaw:
            problems.append(f"{path}: its record.json is no record of an evaluation, because {flaw}.")
            continue
        if records[path].is_later:
            problems.append(f"{path}: a later version of Tradewind wrote the record; what this one knows is shown.")
    boards, cut = evaluation_boards(prefix, records)
    return EvaluationBoards(boards, (*problems, *cut))


def evaluation_boards(
    prefix: str, records: Mapping[str, EvaluationRecord]
) -> tuple[tuple[Board, ...], tuple[str, ...]]:
    """Return the boards of evaluations, given as output path → record, and a sentence if some are left out."""
    start = f"{prefix.rstrip('/')}/"
    subjects = [Subject(path.removeprefix(start), {path: record}) for path, record in records.items()]
    boards: list[Board] = []
    left = MAX_SCORES
    questions = by_question(subjects)
    for question, found in questions.items():
        for metric in metrics_of(found.values()) or [""]:
            left -= len(found)
            if left < 0 or len(boards) == MAX_BOARDS:
                return tuple(boards), (f"{len(boards)} boards are shown: narrow the prefix to see the others.",)
            boards.append(_board(question[0], metric, found))
    return tuple(boards), ()


def _board(task: str, metric: str, found: Mapping[str, Measured]) -> Board:
    """Return the board of a metric, with those that have no number last."""
    scored = [score for each in found.values() if (score := each.task.score(metric)) is not None]
    better = next((score.higher_is_better for score in scored if score.value is not None), None)
    rows = [_row(label, each, each.task.score(metric)) for label, each in found.items()]
    sign = 0 if better is None else -1 if better else 1
    rows.sort(key=lambda row: (row.value is None, sign * (row.value or 0.0), row.label))
    first = next(iter(found.values()))
    title = single_line(ranking_title(task, metric, first, better))
    return Board(title, single_line(task), single_line(metric), better, len(first.task.members), tuple(rows))


def _row(label: str, measured: Measured, score: Score | None) -> BoardScore:
    record, task = measured.record, measured.task
    return BoardScore(
        label=single_line(label),
        output_path=measured.path,
        model=single_line(record.model.name),
        evaluation=single_line(record.evaluation),
        value=None if score is None else score.value,
        low=None if score is None else score.low,
        high=None if score is None else score.high,
        scored=0 if score is None else score.scored,
        documents=task.num_documents,
        coverage=0.0 if score is None else score.coverage,
        status=status_text(task, score),
        problem=single_line(task.error or record.error or ""),
        started_at=record.started_at,
        commit=None if record.commit is None else single_line(record.commit, 80),
        samples=sample_rows(measured.path, measured.name, task, score),
    )
