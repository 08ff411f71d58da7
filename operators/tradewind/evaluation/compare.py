"""Compare two evaluations by task: the difference of each score with its 95 % interval, paired by document.

Two scores are compared if they answer the same question: the same task of the same version with as many examples in
the prompt. Documents with the same id and the same prompt are pairs. If the prompts differ, as by another chat
template, the difference is that of two samples, and the interval is wider.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

from tradewind.datasets.files import join, write_json, write_text
from tradewind.evaluation.evaluated import Measured, Subject, check_paths, read_subjects
from tradewind.evaluation.results import Score
from tradewind.evaluation.scores import TaskScores
from tradewind.evaluation.statistics import NONE, Interval, paired_difference, unpaired_difference
from tradewind.evaluation.summary import arrow, format_interval, format_number
from tradewind.recipes.comparing.runs import missing_runs_error
from tradewind.steps.fields import SOME_TEXT, TEXT, check_fields
from tradewind.steps.needs import needs
from tradewind.text import as_csv, as_markdown, format_columns, markdown_text, single_line

BEFORE: Final = "before"
AFTER: Final = "after"
CHANCE: Final = (
    "Of equal scores, about 1 in 20 is called better or worse by chance: one verdict among many tasks is no proof."
)


class Verdict(StrEnum):
    """Whether a score is better than another, as far as the documents tell."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference known"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Comparison:
    """Two scores of one metric of a task.

    Attributes:
        task, metric: Their names.
        verdict: Of the second score against the first.
        before, after: The scores; None if they were not measured.
        difference: The second minus the first; over pairs if they are paired. None if they are not comparable.
        low, high: Ends of its interval.
        documents: Number of pairs, or of documents of the smaller sample.
        interval: Formula of the interval.
        note: Why they are not comparable or not paired; empty if they are.
    """

    task: str
    metric: str
    verdict: Verdict
    before: Score | None = None
    after: Score | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    documents: int = 0
    interval: str = NONE
    note: str = ""


def compare_subjects(before: Subject, after: Subject, tasks: Sequence[str] | None = None) -> list[Comparison]:
    """Compare all scores of two subjects, or those of ``tasks``, in the order of the second.

    Raises:
        ValueError: A file of samples is missing or not what an evaluation writes.
    """
    names = dict.fromkeys(each.name for subject in (after, before) for each in subject.measured())
    compared = []
    for name in names if tasks is None else tasks:
        found = [each.task for subject in (after, before) if (each := subject.find(name)) is not None]
        metrics = dict.fromkeys(score.metric for task in found for score in task.scores)
        if not metrics and not any(task.members for task in found):  # of a group without a score, its tasks say why
            metrics = {"": None}
        compared += [compare_scores(name, metric, before, after) for metric in metrics]
    return compared


def compare_scores(name: str, metric: str, before: Subject, after: Subject) -> Comparison:
    """Compare one metric of a task; see ``compare_subjects``."""
    found = before.find(name), after.find(name)
    first, second = (None if each is None else each.task.score(metric) for each in found)
    compared = Comparison(name, metric, Verdict.NOT_COMPARABLE, first, second)
    reason = _reason_against(before.label, after.label, *found, metric)
    if reason is not None or found[0] is None or found[1] is None:
        return replace(compared, note=reason or "")
    mine = (before.scores(found[0]), found[0]), (after.scores(found[1]), found[1])
    interval, documents, note = _difference(metric, *mine)
    return replace(
        compared,
        verdict=_verdict(interval, second is not None and second.higher_is_better is True),
        difference=interval.value,
        low=interval.low,
        high=interval.high,
        documents=documents,
        interval=interval.kind,
        note=note,
    )


def _reason_against(
    before: str, after: str, first: Measured | None, second: Measured | None, metric: str
) -> str | None:
    """Return why the two scores of a metric are not comparable; None if they are."""
    if first is None or second is None:
        return f"{before if first is None else after} has no such task"
    for what in ("task", "task_version", "num_fewshot", "members"):
        own = [getattr(each.task, what) for each in (first, second)]
        if own[0] != own[1]:
            return f"{_WORDS[what]} {_shown(own[0])} and {_shown(own[1])}" if what != "members" else _WORDS[what]
    for label, each in ((before, first), (after, second)):
        score = each.task.score(metric)
        if score is None:
            return f"{label} has no {metric or 'score'}: {each.task.error or 'another metric'}"
        if score.value is None:
            return f"{label} is incomplete, with {score.scored:,} of {each.task.num_documents:,} documents"
        if score.interval == NONE:
            return f"{metric} is no mean of documents, so it has no interval"
    better = {each.task.score(metric).higher_is_better for each in (first, second)}  # type: ignore[union-attr]
    return None if better in ({True}, {False}) else f"whether a higher {metric} is better is not known"


_WORDS: Final = {
    "task": "it is the task",
    "task_version": "the versions of the task are",
    "num_fewshot": "the numbers of examples in the prompt are",
    "members": "the tasks of the group differ",
}


def _shown(value: Any) -> str:
    return "unknown" if value is None else single_line(value, 40)


def _difference(
    metric: str, before: tuple[TaskScores, Measured], after: tuple[TaskScores, Measured]
) -> tuple[Interval, int, str]:
    """Return the difference with its interval, the number of documents, and why they are no pairs."""
    (first, earlier), (second, later) = before, after
    shared = first.prompts.keys() & second.prompts.keys()
    own = [each.scores.get(metric, {}) for each in (first, second)]
    totals = [each.task.num_documents for each in (earlier, later)]
    if not any(document in own[0] and document in own[1] for document in shared):
        reason = "the documents are not the same"
    elif any(first.prompts[document] != second.prompts[document] for document in shared):
        templates = {each.task.chat_template_sha256 for each in (earlier, later)}
        reason = "the prompts differ" + (", as do the chat templates" if len(templates) > 1 else "")
    else:
        # With another limit on documents, those of the smaller evaluation are compared.
        documents = sorted(first.prompts.keys() | second.prompts.keys() if totals[0] == totals[1] else shared)
        unasked = [None] * max(0, min(totals) - len(documents))
        pairs = [[*(each.get(document) for document in documents), *unasked] for each in own]
        known = sum(document in own[0] and document in own[1] for document in shared)
        return paired_difference(*pairs), known, ""
    apart = [[*each.values(), *[None] * (total - len(each))] for each, total in zip(own, totals, strict=True)]
    return unpaired_difference(*apart), min(map(len, own)), f"not paired: {reason}"


def _verdict(interval: Interval, higher_is_better: bool) -> Verdict:
    if interval.low is None or interval.high is None or interval.low <= 0 <= interval.high:
        return Verdict.NO_DIFFERENCE
    return Verdict.BETTER if (interval.low > 0) is higher_is_better else Verdict.WORSE


@dataclass(frozen=True)
class CompareEvaluationsConfig:
    """Two evaluations of ``compare_two``."""

    before: str | Sequence[str]
    """Output of an evaluation, or a list of some, whose tasks have different names."""
    after: str | Sequence[str]
    """What is compared with it."""
    output_path: str
    """Gets ``comparison.md``, ``.csv`` and ``.json``."""
    before_label: str = BEFORE
    after_label: str = AFTER
    title: str = "Comparison of evaluations"
    """Heading of the table."""

    def __post_init__(self) -> None:
        check_paths("before", self.before)
        check_paths("after", self.after)
        check_fields(self, before_label=SOME_TEXT, after_label=SOME_TEXT, title=TEXT)
        if self.before_label == self.after_label:
            raise ValueError(f"after_label={self.after_label!r}: give another label than before_label.")


@needs("pyarrow", extra="data")
def compare_two(config: CompareEvaluationsConfig) -> dict[str, Any]:
    """Write the comparison; return verdict → names of the tasks, each with its metric.

    Raises:
        MissingRunsError: An evaluation has no record.
        ValueError: A record or a file of samples is not what an evaluation writes.
    """
    subjects, missing = read_subjects({config.before_label: config.before, config.after_label: config.after})
    if missing:
        raise missing_runs_error(2, missing, "")
    compared = compare_subjects(subjects[0], subjects[1])
    rows = comparison_rows(compared, config.before_label, config.after_label)
    print("\n".join(format_columns(rows)), flush=True)
    write_text(join(config.output_path, "comparison.csv"), as_csv(rows))
    write_json(join(config.output_path, "comparison.json"), [asdict(each) for each in compared])
    parts = [f"# {markdown_text(config.title)}", *_facts(subjects), as_markdown(rows), *notes(compared), CHANCE]
    write_text(join(config.output_path, "comparison.md"), "\n\n".join(parts) + "\n")
    return {verdict.value: [_name(each) for each in compared if each.verdict is verdict] for verdict in Verdict}


def comparison_rows(compared: Iterable[Comparison], before: str, after: str) -> list[list[str]]:
    """Return the table of comparisons, head first."""
    rows = [["task", "metric", before, after, "difference", "95 % interval", "documents", "verdict"]]
    for each in compared:
        better = next((score.higher_is_better for score in (each.after, each.before) if score is not None), None)
        values = [format_number(score.value) if score is not None else "" for score in (each.before, each.after)]
        difference = "" if each.difference is None else f"{each.difference:+.4f}"
        interval = format_interval(each.low, each.high)
        documents = f"{each.documents:,}" if each.documents else ""
        rows.append(
            [
                single_line(each.task), f"{single_line(each.metric)}{arrow(better)}", *values, difference, interval,
                documents, each.verdict.value,
            ]
        )  # fmt: skip
    return rows


def notes(compared: Sequence[Comparison]) -> list[str]:
    """Return the Markdown section that explains what was not compared or not paired, if anything."""
    lines = "\n".join(f"- {markdown_text(f'{_name(each)}: {each.note}')}" for each in compared if each.note)
    return [f"## Notes\n\n{lines}"] if lines else []


def _facts(subjects: Sequence[Subject]) -> list[str]:
    lines = [
        f"- {subject.label}: {record.model.name} ({record.model.path}), {record.evaluation}, "
        f"{record.status.replace('_', ' ')}"
        for subject in subjects
        for record in subject.records.values()
    ]
    return ["\n".join(markdown_text(line) for line in lines)]


def _name(each: Comparison) -> str:
    return f"{each.task} {each.metric}".rstrip()
