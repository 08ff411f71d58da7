"""Scores of tasks and of groups of tasks, made of the answers by document."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tradewind.evaluation.results import Sample, Score, Status, TaskRecord, TaskResult
from tradewind.evaluation.statistics import NONE, mean_interval

MIN_COVERAGE: Final = 0.9
"""Share of the documents with a score below which there is no number."""
_CLOSE: Final = 1e-6
"""Relative difference of two means of the same scores, which another order of addition explains."""


@dataclass(frozen=True)
class TaskScores:
    """The scores of a task by document, without the texts.

    Attributes:
        prompts: Document → hash of its prompt.
        scores: Metric → document → score; without documents that lack it.
    """

    prompts: dict[str, str] = field(default_factory=dict)
    scores: dict[str, dict[str, float]] = field(default_factory=dict)


def task_records(results: Sequence[TaskResult]) -> dict[str, TaskRecord]:
    """Return the record of each task, by its name.

    Raises:
        ValueError: Two results have one name, or one has two samples of a document.
    """
    records: dict[str, TaskRecord] = {}
    for result in results:
        if result.name in records:
            raise ValueError(f"Two results are named {result.name!r}: give each task of an evaluation its own alias.")
        records[result.name] = _task_record(result)
    return records


def group_records(results: Sequence[TaskResult], records: Mapping[str, TaskRecord]) -> dict[str, TaskRecord]:
    """Return the record of each group, whose score is that of all documents of its tasks together.

    Raises:
        ValueError: A group has the name of a task.
    """
    groups: dict[str, list[TaskResult]] = {}
    for result in results:
        for group in result.groups:
            groups.setdefault(group, []).append(result)
    if both := sorted(groups.keys() & records.keys()):
        raise ValueError(f"{both[0]!r} is a task and a group: give the task another alias.")
    return {name: _group_record(name, members, records) for name, members in sorted(groups.items())}


def worst_status(given: Status, records: Mapping[str, TaskRecord]) -> Status:
    """Return the status of an evaluation: the given one, or the worst of its tasks' if that is ``SUCCEEDED``."""
    order = list(Status)
    return max([given, *(each.status for each in records.values() if given is Status.SUCCEEDED)], key=order.index)


def document_scores(samples: Sequence[Sample], metric: str, num_documents: int) -> list[float | None]:
    """Return the score of each document of a task, None where it is missing; those not attempted come last."""
    scores = [finite_score(sample, metric) for sample in samples]
    return [*scores, *[None] * (num_documents - len(scores))]


def finite_score(sample: Sample, metric: str) -> float | None:
    """Return the score of a sample, None without one or if it is no finite number."""
    score = sample.scores.get(metric)
    return float(score) if score is not None and math.isfinite(score) else None


def prompt_sha256(sample: Sample) -> str:
    """Return the hash of the prompt of a sample."""
    return _sha256(sample.prompt)


def make_score(scores: Sequence[float | None], attempted: int, metric: str, higher_is_better: bool | None) -> Score:
    """Return a score with its interval, and without a number below ``MIN_COVERAGE``."""
    scored = sum(score is not None for score in scores)
    counts = (scored, attempted, attempted - scored, scored / len(scores) if scores else 0.0)
    if not scored or counts[-1] < MIN_COVERAGE:
        return Score(metric, None, None, None, *counts, higher_is_better, NONE)
    mean = mean_interval(scores)
    return Score(metric, mean.value, mean.low, mean.high, *counts, higher_is_better, mean.kind)


def _task_record(result: TaskResult) -> TaskRecord:
    documents = [sample.document for sample in result.samples]
    if len(set(documents)) < len(documents):
        twice = Counter(documents).most_common(1)[0][0]
        raise ValueError(f"Task {result.name!r} has two samples of document {twice!r}.")
    errors = sum(sample.error is not None for sample in result.samples)
    ended = result.status is Status.SUCCEEDED
    status = Status.FAILED if ended and 0 < errors == len(documents) else result.status
    total = max(result.num_documents, len(documents))
    scores = tuple(_score(result, metric, total) for metric in _metrics(result)) if status is Status.SUCCEEDED else ()
    incomplete = status is Status.SUCCEEDED and (not scores or any(score.value is None for score in scores))
    lacks_some = len(documents) < total or errors > 0
    return TaskRecord(
        task=result.task,
        task_version=result.task_version,
        num_fewshot=result.num_fewshot,
        status=Status.INCOMPLETE if incomplete else status,
        num_documents=total,
        scores=scores,
        prompts_sha256=_prompts_sha256(result.samples) if documents else None,
        chat_template_sha256=result.chat_template_sha256,
        error=result.error or (_missing(result, total) if ended and (incomplete or lacks_some) else None),
    )


def _metrics(result: TaskResult) -> list[str]:
    return sorted({*result.metrics, *(metric for sample in result.samples for metric in sample.scores)})


def _score(result: TaskResult, metric: str, total: int) -> Score:
    """Return the score of a metric: a mean over documents, or the harness's own number without an interval."""
    attempted, better = len(result.samples), result.higher_is_better.get(metric)
    scores = document_scores(result.samples, metric, total)
    known = [score for score in scores if score is not None]
    own = result.metrics.get(metric)
    if own is None or (known and _is_mean(own, known, attempted)):
        return make_score(scores, attempted, metric, better)
    scored = len(known) or sum(sample.error is None for sample in result.samples)
    coverage = scored / total if total else 0.0
    value = own if coverage >= MIN_COVERAGE and math.isfinite(own) else None
    return Score(metric, value, None, None, scored, attempted, attempted - scored, coverage, better, NONE)


def _is_mean(value: float, known: Sequence[float], attempted: int) -> bool:
    """Whether a harness's number is the mean of the scores; a harness may count an error as zero."""
    total = math.fsum(known)
    return any(math.isclose(value, total / count, rel_tol=_CLOSE, abs_tol=_CLOSE) for count in {len(known), attempted})


def _missing(result: TaskResult, total: int) -> str:
    """Say why documents have no score, in one sentence."""
    failed = [sample.error for sample in result.samples if sample.error is not None]
    first = f"; the first error: {failed[0]}" if failed else ""
    return f"Of {total:,} documents {len(result.samples):,} were attempted, {len(failed):,} with an error{first}"


def _group_record(name: str, members: Sequence[TaskResult], records: Mapping[str, TaskRecord]) -> TaskRecord:
    own = {member.name: records[member.name] for member in sorted(members, key=lambda each: each.name)}
    lost = [member for member, record in own.items() if record.status in (Status.FAILED, Status.INFRASTRUCTURE_LOST)]
    scores = () if lost else tuple(_pooled(metric, members, own) for metric in _means_of_all(own))
    incomplete = bool(lost) or any(score.value is None for score in scores)
    prompts = [record.prompts_sha256 for record in own.values()]
    error = f"Without a result of {', '.join(lost)}" if lost else "Its tasks share no metric" if not scores else None
    return TaskRecord(
        task=name,
        task_version=_common_version(own),
        num_fewshot=members[0].num_fewshot if len({member.num_fewshot for member in members}) == 1 else None,
        status=Status.INCOMPLETE if incomplete else Status.SUCCEEDED,
        num_documents=sum(record.num_documents for record in own.values()),
        scores=scores,
        prompts_sha256=_sha256("\n".join(map(str, prompts))) if all(prompts) else None,
        chat_template_sha256=members[0].chat_template_sha256,
        error=error,
        members=tuple(own),
    )


def _means_of_all(own: Mapping[str, TaskRecord]) -> list[str]:
    """Return the metrics that all tasks have, and that are means over documents."""
    means = [
        {score.metric for score in record.scores if score.interval != NONE or score.value is None}
        for record in own.values()
    ]
    return sorted(set.intersection(*means))


def _pooled(metric: str, members: Sequence[TaskResult], own: Mapping[str, TaskRecord]) -> Score:
    scores = [
        score for member in members for score in document_scores(member.samples, metric, own[member.name].num_documents)
    ]
    better = {member.higher_is_better.get(metric) for member in members}
    return make_score(
        scores, sum(len(member.samples) for member in members), metric, better.pop() if len(better) == 1 else None
    )


def _common_version(own: Mapping[str, TaskRecord]) -> str:
    versions = {record.task_version for record in own.values()}
    if len(versions) == 1:
        return versions.pop()
    return _sha256("\n".join(f"{name} {record.task_version}" for name, record in own.items()))[:12]


def _prompts_sha256(samples: Sequence[Sample]) -> str:
    lines = sorted(f"{sample.document}\t{prompt_sha256(sample)}" for sample in samples)
    return _sha256("\n".join(lines))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
