"""What an evaluation found: answers by document, scores by task, and the record of it all.

A harness gives a ``TaskResult`` for each task. ``write_results`` makes scores of them and writes the files; the last is
``record.json``, so an output with a record is whole. The record is read by other steps and other versions of Tradewind:
fields that this version does not know are ignored.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tradewind.datasets.files import join
from tradewind.records.parsing import (
    ANYTHING,
    COUNT,
    FLAG,
    MOMENT,
    NUMBER,
    OBJECT,
    TEXT,
    FieldType,
    RecordFormatError,
    list_of,
    object_of,
    one_of,
    parse_fields,
    parse_object,
)
from tradewind.storage.bounded_read import Content

SCHEMA: Final = "tradewind.evaluation/1"
RECORD_FILE: Final = "record.json"
SAMPLES_FILE: Final = "samples.parquet"
SCORE_COLUMN: Final = "score/"
"""Prefix of the column of a metric in it."""
MAX_RECORD_BYTES: Final = 4 << 20
"""Bound for a record, which becomes twenty times as large when parsed."""
MAX_TASKS: Final = 2_000
_SCHEMA: Final = re.compile(r"tradewind\.evaluation/([1-9][0-9]{0,8})")


class NoRecordError(ValueError):
    """There is no record of an evaluation at a path."""


class Status(StrEnum):
    """How an evaluation or one of its tasks ended, the worst last.

    Values:
        SUCCEEDED: There is a score for at least ``MIN_COVERAGE`` of the documents.
        INCOMPLETE: There are answers, but too few for a number.
        FAILED: The task or the harness failed, or the model answered no document; the error says why.
        INFRASTRUCTURE_LOST: The model could not be asked any more; another attempt continues with the answers so far.
    """

    SUCCEEDED = "succeeded"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    INFRASTRUCTURE_LOST = "infrastructure_lost"


@dataclass(frozen=True)
class Sample:
    """What a model answered for one document.

    Attributes:
        document: Id of the document, the same in each evaluation of the task.
        prompt: What the model was asked.
        target: The right answer.
        answer: The answer of the model.
        scores: Metric → score of this document; empty if there was an error.
        error: Why there is no score.
    """

    document: str
    prompt: str
    target: str
    answer: str
    scores: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class TaskResult:
    """What a harness gives for one task.

    Attributes:
        name: Name of the result: unique in an evaluation, such as the alias, or the task with its number of shots.
        task: Name of the task in the harness.
        task_version: Version of the task; scores of two versions are not compared.
        num_fewshot: Number of examples in each prompt; None if the task knows no such number.
        higher_is_better: Metric → whether more is better. A metric that is missing here is shown, not compared.
        metrics: Metric → the harness's own number for the whole task; NaN if it is no mean over the documents, and not
            to be believed. A metric that is missing here is a mean over the documents.
        num_documents: Number of documents to ask, after any limit.
        samples: At most one for each document. A document without one was not attempted.
        status: ``FAILED`` or ``INFRASTRUCTURE_LOST`` if the task did not end; else the coverage decides.
        error: Why the task failed.
        chat_template_sha256: Hash of the chat template of the prompts, if any.
        groups: Names of the groups that the task is a part of, such as ``mmlu``, whose documents are pooled.
    """

    name: str
    task: str
    task_version: str
    num_fewshot: int | None
    higher_is_better: Mapping[str, bool]
    metrics: Mapping[str, float]
    num_documents: int
    samples: tuple[Sample, ...]
    status: Status = Status.SUCCEEDED
    error: str | None = None
    chat_template_sha256: str | None = None
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Score:
    """A score of a task, with the 95 % interval of what it would be over all such documents.

    Attributes:
        metric: Name of the metric.
        value: The mean over the scored documents; None below ``MIN_COVERAGE``, or if no document was scored.
        low, high: Ends of the interval; None without a value or with the interval ``"none"``.
        scored: Number of documents with a score.
        attempted: Number of documents that the model was asked about.
        errors: Number of attempted documents without a score.
        coverage: Scored documents as a share of all documents of the task.
        higher_is_better: None if the harness does not say.
        interval: Its formula, see ``tradewind.evaluation.statistics``; ``"none"`` for a number that is no mean over
            documents, or without a value.
    """

    metric: str
    value: float | None
    low: float | None
    high: float | None
    scored: int
    attempted: int
    errors: int
    coverage: float
    higher_is_better: bool | None
    interval: str


@dataclass(frozen=True)
class TaskRecord:
    """A task, or a group of tasks whose documents are pooled, in a record.

    Attributes:
        task, task_version, num_fewshot, chat_template_sha256: As in ``TaskResult``.
        num_documents: Number of documents to ask.
        prompts_sha256: Hash of the ids and prompts of all documents, in order: equal for equal questions.
        scores: One for each metric.
        status: Whether the scores may be believed.
        error: Why the task failed, or why documents have no score.
        members: Names of the tasks of a group; empty for a task.
    """

    task: str
    task_version: str
    num_fewshot: int | None
    status: Status
    num_documents: int
    scores: tuple[Score, ...] = ()
    prompts_sha256: str | None = None
    chat_template_sha256: str | None = None
    error: str | None = None
    members: tuple[str, ...] = ()

    def score(self, metric: str) -> Score | None:
        """Return the score of a metric."""
        return next((each for each in self.scores if each.metric == metric), None)


@dataclass(frozen=True)
class Model:
    """The model that was evaluated.

    Attributes:
        path: Where it came from: a path, or ``hub:org/name@COMMIT``.
        name: Its name in the API.
        version: Version of the step that made it, or its revision; None if unknown.
    """

    path: str
    name: str
    version: str | None = None


@dataclass(frozen=True)
class Serving:
    """What served the model.

    Attributes:
        engine: ``levanter``, ``vllm``, ``command``; ``api`` for an address of another party, ``in_process`` without a
            server.
        version: Version of the engine, if it is known.
        replicas: Number of engines when the evaluation began.
        hardware: Such as ``v6e-8``.
    """

    engine: str
    version: str | None = None
    replicas: int | None = None
    hardware: str | None = None


@dataclass(frozen=True)
class EvaluationRecord:
    """One evaluation of one model: ``record.json``.

    The caller of ``write_results`` gives all but the tasks and groups, which are made of the results.

    Attributes:
        evaluation: The harness, such as ``lm_evaluation_harness``.
        status: The worst of the tasks' if the caller gives ``SUCCEEDED``.
        commit: Commit of the code, if it is known.
        started_at, ended_at: In seconds since 1970.
        requests: Number of requests that the harness made, ``cached`` of which were answered by an earlier attempt.
        prompt_tokens, completion_tokens: Of the requests that were sent; None if the engine does not count.
        paused_s: Seconds in which the model could not be asked.
        tasks: Name → task.
        groups: Name → group.
        error: Why the evaluation failed.
        harness_version: Version of the harness, if it is known.
        schema: A later one was written by a later version of Tradewind, of which only the known fields are read.
    """

    evaluation: str
    status: Status
    model: Model
    serving: Serving
    started_at: float
    ended_at: float
    commit: str | None = None
    requests: int = 0
    cached: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    paused_s: float = 0.0
    tasks: Mapping[str, TaskRecord] = field(default_factory=dict)
    groups: Mapping[str, TaskRecord] = field(default_factory=dict)
    error: str | None = None
    harness_version: str | None = None
    schema: str = SCHEMA

    @property
    def tokens_per_second(self) -> float | None:
        """Return the tokens, of prompts and completions, per second without the pauses."""
        if self.prompt_tokens is None and self.completion_tokens is None:
            return None
        seconds = self.ended_at - self.started_at - self.paused_s
        return ((self.prompt_tokens or 0) + (self.completion_tokens or 0)) / seconds if seconds > 0 else None

    @property
    def is_later(self) -> bool:
        """Whether a later version of Tradewind wrote the record."""
        return self.schema != SCHEMA

    def entries(self) -> list[tuple[str, TaskRecord]]:
        """Return all tasks, and then all groups, with their names."""
        return [*self.tasks.items(), *self.groups.items()]

    def task(self, name: str) -> TaskRecord | None:
        """Return the task or group of that name."""
        return self.tasks.get(name) or self.groups.get(name)

    def only(self, names: Collection[str]) -> EvaluationRecord:
        """Return the record with only the tasks and groups of these names."""
        tasks, groups = (
            {name: task for name, task in some.items() if name in names} for some in (self.tasks, self.groups)
        )
        return dataclasses.replace(self, tasks=tasks, groups=groups)

    def as_json(self) -> dict[str, Any]:
        """Return the content of ``record.json``."""
        return {**dataclasses.asdict(self), "tokens_per_second": self.tokens_per_second}


def write_results(output_path: str, record: EvaluationRecord, tasks: Sequence[TaskResult]) -> EvaluationRecord:
    """Write the files of an evaluation, ``record.json`` last, and return the record with its tasks.

    Raises:
        ValueError: Two results have one name, or one has two samples of a document.
    """
    from tradewind.evaluation.files import write_files  # pyarrow: not while a DAG file is parsed

    return write_files(output_path, record, tasks)


def read_record(output_path: str) -> EvaluationRecord:
    """Read the record of an evaluation.

    Raises:
        NoRecordError: There is none; the message names the file.
        ValueError: It is no record; the message names the file.
    """
    from tradewind.storage.files import read_contents  # the file store: not while a DAG file is parsed

    path = join(output_path, RECORD_FILE)
    content = read_contents([path], MAX_RECORD_BYTES).get(path)
    if content is None:
        raise NoRecordError(f"There is no {path}: give the output of an evaluation that has ended.")
    try:
        return record_in(content)
    except RecordFormatError as flaw:
        raise ValueError(f"{path} is no record of an evaluation, because {flaw}: force that step once.") from None


def record_in(content: Content) -> EvaluationRecord:
    """Return the record in the content of a file; raises ``RecordFormatError`` if it is none."""
    if content.flaw is not None:
        raise RecordFormatError(content.flaw)
    return parse_record(content.text)


def parse_record(text: str) -> EvaluationRecord:
    """Parse the content of ``record.json``.

    Raises:
        RecordFormatError: It is none.
    """
    given = parse_fields(parse_object(text), _RECORD, _REQUIRED)
    if not _SCHEMA.fullmatch(given["schema"]):
        raise RecordFormatError(f"its schema is not {SCHEMA}, or a later one")
    if len(given.get("tasks", {})) + len(given.get("groups", {})) > MAX_TASKS:
        raise RecordFormatError(f"it has more than {MAX_TASKS:,} tasks")
    return EvaluationRecord(
        **{
            **given,
            "status": Status(given["status"]),
            "model": Model(**parse_fields(given["model"], _MODEL, ("path", "name"), "its model's")),
            "serving": Serving(**parse_fields(given["serving"], _SERVING, ("engine",), "its serving's")),
            "tasks": {name: _task(each) for name, each in given.get("tasks", {}).items()},
            "groups": {name: _task(each) for name, each in given.get("groups", {}).items()},
        }
    )


def _task(value: Any) -> TaskRecord:
    required = ("task", "task_version", "num_fewshot", "status", "num_documents")
    given = parse_fields(value, _TASK, required, "a task's")
    scores = tuple(Score(**parse_fields(each, _SCORE, _SCORE, "a score's")) for each in given.get("scores", ()))
    members = tuple(given.get("members", ()))
    return TaskRecord(**{**given, "status": Status(given["status"]), "scores": scores, "members": members})


_STATUS: Final = one_of(Status)
_SHARE: Final = FieldType(lambda value: NUMBER.fits(value) and 0 <= value <= 1, "a share from 0 to 1")
_RECORD: Final[Mapping[str, FieldType]] = {
    **dict.fromkeys(("schema", "evaluation"), TEXT),
    **dict.fromkeys(("commit", "error", "harness_version"), TEXT.or_null()),
    "status": _STATUS,
    **dict.fromkeys(("model", "serving"), OBJECT),
    **dict.fromkeys(("started_at", "ended_at"), MOMENT),
    **dict.fromkeys(("requests", "cached"), COUNT),
    **dict.fromkeys(("prompt_tokens", "completion_tokens"), COUNT.or_null()),
    "paused_s": NUMBER,
    **dict.fromkeys(("tasks", "groups"), object_of(ANYTHING)),
}
_REQUIRED: Final = ("schema", "evaluation", "status", "model", "serving", "started_at", "ended_at")
_MODEL: Final = {"path": TEXT, "name": TEXT, "version": TEXT.or_null()}
_SERVING: Final = {
    "engine": TEXT,
    **dict.fromkeys(("version", "hardware"), TEXT.or_null()),
    "replicas": COUNT.or_null(),
}
_TASK: Final[Mapping[str, FieldType]] = {
    **dict.fromkeys(("task", "task_version"), TEXT),
    "num_fewshot": COUNT.or_null(),
    "status": _STATUS,
    "num_documents": COUNT,
    "scores": list_of(OBJECT),
    **dict.fromkeys(("prompts_sha256", "chat_template_sha256", "error"), TEXT.or_null()),
    "members": list_of(TEXT),
}
_SCORE: Final[Mapping[str, FieldType]] = {
    "metric": TEXT,
    **dict.fromkeys(("value", "low", "high"), NUMBER.or_null()),
    **dict.fromkeys(("scored", "attempted", "errors"), COUNT),
    "coverage": _SHARE,
    "higher_is_better": FLAG.or_null(),
    "interval": TEXT,
}
