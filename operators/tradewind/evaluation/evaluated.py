"""Read evaluations to compare: what was measured under each label, and the scores by document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tradewind.datasets.files import join, parent
from tradewind.evaluation.results import (
    MAX_RECORD_BYTES,
    RECORD_FILE,
    EvaluationRecord,
    NoRecordError,
    TaskRecord,
    read_record,
    record_in,
)
from tradewind.evaluation.scores import TaskScores
from tradewind.recipes.comparing.runs import MissingRun
from tradewind.records.parsing import RecordFormatError
from tradewind.steps.fields import PATH, FieldRule
from tradewind.storage.bounded_read import Content

MAX_LABELS: Final = 50
"""Bound for evaluations that are compared with each other: their scores by document are in memory together."""

_RECORDS_AT_ONCE: Final = 16
"""Records in memory together."""

EVALUATIONS: Final = FieldRule(
    f"a mapping of at most {MAX_LABELS} labels to evaluations, such as {{'before': evaluated}}, or to lists of them",
    lambda value: (
        isinstance(value, Mapping)
        and 0 < len(value) <= MAX_LABELS
        and all(isinstance(label, str) and label.strip() and label.isprintable() for label in value)
    ),
)


@dataclass(frozen=True)
class Measured:
    """A task or group that was measured.

    Attributes:
        path: Output of its evaluation.
        record: Record of its evaluation.
        name: Its name there.
        task: Its entry there.
    """

    path: str
    record: EvaluationRecord
    name: str
    task: TaskRecord

    @property
    def tasks(self) -> Sequence[str]:
        """Return the names of the tasks whose documents it has."""
        return self.task.members or (self.name,)


@dataclass(frozen=True)
class Subject:
    """What is compared under one label: usually one model, in one evaluation or several.

    Attributes:
        label: Its name in tables.
        records: Output path → record.
    """

    label: str
    records: Mapping[str, EvaluationRecord]
    _scores: dict[str, dict[str, TaskScores]] = field(default_factory=dict, repr=False)

    def measured(self) -> Iterator[Measured]:
        """Yield all tasks, and then all groups."""
        for path, record in self.records.items():
            for name, task in record.entries():
                yield Measured(path, record, name, task)

    def find(self, name: str) -> Measured | None:
        """Return the task or group of that name."""
        return next((each for each in self.measured() if each.name == name), None)

    def scores(self, measured: Measured) -> TaskScores:
        """Return the scores of a task by document, or of all tasks of a group; raises ``ValueError`` without any."""
        from tradewind.evaluation.files import read_scores  # pyarrow: not while a DAG file is parsed

        if measured.path not in self._scores:
            self._scores[measured.path] = read_scores(measured.path, measured.record.tasks)
        own = self._scores[measured.path]
        if not measured.task.members:
            return own[measured.name]
        pooled = TaskScores()
        for name in measured.tasks:
            pooled.prompts.update({f"{name} {document}": hashed for document, hashed in own[name].prompts.items()})
            for metric, scores in own[name].scores.items():
                mine = pooled.scores.setdefault(metric, {})
                mine.update({f"{name} {document}": score for document, score in scores.items()})
        return pooled


def paths_of(given: str | Sequence[str]) -> Sequence[str]:
    """Return the outputs under a label."""
    return [given] if isinstance(given, str) else given


def check_paths(field_name: str, given: object) -> None:
    """Refuse what is neither an evaluation nor a list of some; raises ``ValueError``."""
    each_of = list(enumerate(given)) if isinstance(given, (list, tuple)) else []
    for at, each in each_of:
        PATH.check(f"{field_name}[{at}]", each)
    if not each_of:
        PATH.check(field_name, given)


def read_subjects(evaluations: Mapping[str, str | Sequence[str]]) -> tuple[list[Subject], list[MissingRun]]:
    """Read the records of evaluations, given as label → output or outputs, and say which have none.

    Raises:
        ValueError: Two evaluations of one label have a task of one name.
        StoreUnavailableError: The store does not answer.
    """
    paths = list(dict.fromkeys(path for given in evaluations.values() for path in paths_of(given)))
    records, reasons = _read(paths)
    subjects, missing = [], []
    for label, given in evaluations.items():
        own = {path: records[path] for path in paths_of(given) if path in records}
        missing += [MissingRun(label, reasons[path]) for path in paths_of(given) if path in reasons]
        subject = Subject(label, own)
        _check_names(subject)
        if own:
            subjects.append(subject)
    return subjects, missing


def _read(paths: Sequence[str]) -> tuple[dict[str, EvaluationRecord], dict[str, str]]:
    """Return the records that can be read, and why the others cannot."""
    from tradewind.recipes.comparing.reading import reason_without_result  # these load the file store
    from tradewind.records.record import RecordState, read_records

    records: dict[str, EvaluationRecord] = {}
    reasons: dict[str, str] = {}
    lacking = []
    for path in paths:
        try:
            records[path] = read_record(path)
        except ValueError as error:
            reasons[path] = str(error)
            lacking += [path] if isinstance(error, NoRecordError) else []
    for path, output in read_records(lacking).items():
        if output.state not in (RecordState.NONE, RecordState.FINISHED):
            reasons[path] = f"{path}: {reason_without_result(path, output)}"
    return records, reasons


def evaluations_below(prefix: str) -> tuple[dict[str, EvaluationRecord], list[str]]:
    """Return output → record of all evaluations below a prefix, and why records cannot be read.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    from tradewind.records.discovery import find_outputs  # the file store: not while a DAG file is parsed

    records: dict[str, EvaluationRecord] = {}
    reasons: list[str] = []
    for path, found in read_existing(list(find_outputs(prefix))):
        if isinstance(found, EvaluationRecord):
            records[path] = found
        else:
            reasons.append(f"{join(path, RECORD_FILE)} is no record of an evaluation, because {found}.")
    return records, reasons


def read_existing(paths: Sequence[str]) -> Iterator[tuple[str, EvaluationRecord | RecordFormatError]]:
    """Read the records of outputs that have one; yield output and record, or why it is none.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    for path, content in record_contents(paths):
        try:
            yield path, record_in(content)
        except RecordFormatError as flaw:
            yield path, flaw


def record_contents(paths: Sequence[str]) -> Iterator[tuple[str, Content]]:
    """Yield output and content of each record that exists, read a few at once.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    from tradewind.storage.files import read_contents  # the file store: not while a DAG file is parsed

    files = [join(path, RECORD_FILE) for path in paths]
    for start in range(0, len(files), _RECORDS_AT_ONCE):
        for file, content in read_contents(files[start : start + _RECORDS_AT_ONCE], MAX_RECORD_BYTES).items():
            yield parent(file), content


def _check_names(subject: Subject) -> None:
    places: dict[str, str] = {}
    for each in subject.measured():
        if each.name in places:
            raise ValueError(
                f"{subject.label!r} has {each.name!r} in {places[each.name]} and in {each.path}: give each evaluation "
                "a label of its own, or the task an alias."
            )
        places[each.name] = each.path
