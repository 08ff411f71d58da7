"""Where the answers behind a score are: rows of ``samples.parquet``, by a filter of the page Data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tradewind.datasets.files import join
from tradewind.evaluation.results import SAMPLES_FILE, SCORE_COLUMN, Score, TaskRecord
from tradewind.evaluation.statistics import WILSON

_MAX_FILTER_CHARS: Final = 1000
"""Of a longer filter the page shows nothing."""


@dataclass(frozen=True)
class SampleRows:
    """Rows of a file of samples.

    Attributes:
        path: The file.
        filter: As ``tradewind data show --filter`` takes it; empty for all rows.
        wrong: Number of these rows if they are the wrong answers; None if they are all answers of the task, since its
            score is no share of right ones, or since none is wrong.
    """

    path: str
    filter: str
    wrong: int | None


def sample_rows(output_path: str, name: str, task: TaskRecord, score: Score | None) -> SampleRows | None:
    """Return the samples of a score in the record of an evaluation; None for a group, and without any.

    Args:
        name: Name of the task in the record.
    """
    if task.members or score is None or not score.attempted:
        return None
    path, wrong = join(output_path, SAMPLES_FILE), _wrong(score)
    of_task = ("task", name)
    of_wrong = _filter(of_task, (f"{SCORE_COLUMN}{score.metric}", "0" if score.higher_is_better else "1"))
    if wrong and of_wrong is not None:
        return SampleRows(path, of_wrong, wrong)
    return SampleRows(path, _filter(of_task) or "", None)


def _wrong(score: Score) -> int | None:
    """Return the number of wrong answers; None if the score is not the share of right or of wrong ones."""
    if score.interval != WILSON or score.value is None or score.higher_is_better is None:
        return None
    ones = round(score.value * score.scored)
    return score.scored - ones if score.higher_is_better else ones


def _filter(*values: tuple[str, str]) -> str | None:
    """Return the filter of rows with these values, as column and value; None if a filter cannot say it."""
    text = " & ".join(f"{column}={value}" for column, value in values)
    is_clear = all(not {":", "="}.intersection(column) and " & " not in column + value for column, value in values)
    return text if is_clear and len(text) <= _MAX_FILTER_CHARS else None
