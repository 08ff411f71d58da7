"""A gate: fail a run if a score is below a bound, or worse than that of another evaluation, with confidence.

With confidence means that the 95 % interval excludes the bound: a score that may still be good enough passes. The step
fails also if it cannot judge, because the task has no number; only against the previous evaluation, of which there may
be none yet, it passes and says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tradewind.datasets.files import join, write_json
from tradewind.evaluation.compare import Comparison, Verdict, compare_scores
from tradewind.evaluation.evaluated import Measured, Subject, read_existing, read_subjects
from tradewind.evaluation.results import EvaluationRecord, Score, read_record
from tradewind.evaluation.statistics import NONE
from tradewind.evaluation.summary import arrow, format_interval, format_number, status_text
from tradewind.recipes.comparing.runs import missing_runs_error
from tradewind.steps.fields import FLAG, PATH, SOME_TEXT, check_fields, number
from tradewind.steps.needs import needs
from tradewind.text import did_you_mean, format_columns, format_time, single_line

CURRENT: Final = "the evaluation"
BASELINE: Final = "the other"
_PREFERRED: Final = "acc"
"""Metric of a task with several, if none is given."""
_VERSIONED: Final = re.compile(r"(.+)-[0-9a-f]{6}", re.DOTALL)
"""Last part of an output path: name and hash."""
MAX_VERSIONS: Final = 2000
"""Bound for other versions of an evaluation, whose records are read for the previous one."""


class RequirementError(RuntimeError):
    """A score is not what a gate requires."""


@dataclass(frozen=True)
class RequireConfig:
    """What ``check_requirement`` requires."""

    evaluation: str
    """Output of an evaluation."""
    task: str
    """Name of a task or group in it."""
    output_path: str
    """Gets ``gate.json``."""
    metric: str | None = None
    """None for the only metric of the task, or ``acc``."""
    at_least: float | None = None
    """Lower bound of the score."""
    at_most: float | None = None
    """Upper bound of the score, such as of a perplexity."""
    no_worse_than: str | None = None
    """Output of another evaluation that measured the task."""
    previous: bool = False
    """Whether the score must be no worse than in the newest earlier evaluation of the same name, in any version."""
    confident: bool = True
    """Whether the step fails only if the 95 % interval excludes the bound; else the score itself decides."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            evaluation=PATH,
            task=SOME_TEXT,
            output_path=PATH,
            metric=SOME_TEXT.or_none(),
            at_least=number().or_none(),
            at_most=number().or_none(),
            no_worse_than=PATH.or_none(),
            previous=FLAG,
            confident=FLAG,
        )
        if all(each is None for each in (self.at_least, self.at_most, self.no_worse_than)) and not self.previous:
            raise ValueError("at_least=None: give at_least, at_most, no_worse_than or previous=True.")


@dataclass(frozen=True)
class Check:
    """One requirement and whether it is met.

    Attributes:
        bound: Such as ``at least 0.5``.
        value: What is compared with the bound: the score, or the difference of scores.
        low, high: Ends of its interval.
        verdict: ``met``, ``not met``, or why there is nothing to judge.
        is_met: Whether the gate lets it pass.
    """

    bound: str
    value: float | None
    low: float | None
    high: float | None
    verdict: str
    is_met: bool


@needs("pyarrow", extra="data")
def check_requirement(config: RequireConfig) -> dict[str, Any]:
    """Write and return what was required and found.

    Raises:
        RequirementError: A requirement is not met, or cannot be judged; the message has the table.
        MissingRunsError: An evaluation has no record.
        ValueError: The evaluation has no such task or metric, or a file is not what an evaluation writes.
    """
    evaluations = {CURRENT: config.evaluation}
    if config.no_worse_than is not None:
        evaluations[BASELINE] = config.no_worse_than
    subjects, missing = read_subjects(evaluations)
    if missing:
        raise missing_runs_error(len(evaluations), missing, "")
    measured = _measured(subjects[0], config.task)
    score = _score(measured, config.metric)
    checks = [*_bounds(config, measured, score), *_against_others(config, subjects, measured, score)]
    gate = {
        "task": config.task,
        "metric": score.metric,
        "score": asdict(score),
        "checks": [asdict(check) for check in checks],
        "evaluation": config.evaluation,
    }
    rows = _table(config.task, score, checks)
    print("\n".join(format_columns(rows)), flush=True)
    write_json(join(config.output_path, "gate.json"), gate)
    if failed := [check for check in checks if not check.is_met]:
        what = f"{single_line(config.task)} {single_line(score.metric)}"
        reasons = "; ".join(f"{check.bound}: {check.verdict}" for check in failed)
        raise RequirementError("\n".join([f"{what} is not as required: {reasons}.", *format_columns(rows)]))
    return gate


def _measured(subject: Subject, task: str) -> Measured:
    found = subject.find(task)
    if found is None:
        known = [each.name for each in subject.measured()]
        raise ValueError(f"task={task!r}: the evaluation has no such task; {did_you_mean(task, known[:100])}")
    return found


def _score(measured: Measured, metric: str | None) -> Score:
    known = [score.metric for score in measured.task.scores]
    if not known:
        reason = single_line(measured.task.error or "no document was scored").rstrip(".")
        raise RequirementError(f"{measured.name} has no score ({status_text(measured.task, None)}): {reason}.")
    chosen = metric or (known[0] if len(known) == 1 else _PREFERRED)
    score = measured.task.score(chosen)
    if score is None:
        raise ValueError(f"metric={metric!r}: {measured.name} has {', '.join(map(single_line, known))}; give one.")
    return score


def _bounds(config: RequireConfig, measured: Measured, score: Score) -> Iterator[Check]:
    """Yield the checks of ``at_least`` and ``at_most``."""
    for name, bound, sign in (("at least", config.at_least, 1), ("at most", config.at_most, -1)):
        if bound is None:
            continue
        ends = score.value, score.low, score.high
        what = f"{name} {format_number(bound)}"
        if score.value is None:
            counted = f"incomplete, with {score.scored:,} of {measured.task.num_documents:,} documents"
            yield Check(what, *ends, counted, False)
            continue
        # The end that is nearer to the bound from the bad side decides; without an interval the score itself.
        reached = (score.high if sign == 1 else score.low) if config.confident else score.value
        is_met = sign * ((score.value if reached is None else reached) - bound) >= 0
        yield Check(what, *ends, _met(is_met, config.confident and score.interval != NONE), is_met)


def _met(is_met: bool, confident: bool) -> str:
    return "met" if is_met else f"not met{' with confidence' if confident else ''}"


def _against_others(
    config: RequireConfig, subjects: Sequence[Subject], measured: Measured, score: Score
) -> Iterator[Check]:
    """Yield the checks against the other evaluation and the previous one."""
    if config.no_worse_than is not None:
        found = compare_scores(config.task, score.metric, subjects[1], subjects[0])
        yield _no_worse(f"no worse than {config.no_worse_than}", found, config.confident)
    if config.previous:
        yield _against_previous(config, subjects[0], measured, score)


def _no_worse(bound: str, found: Comparison, confident: bool) -> Check:
    ends = found.difference, found.low, found.high
    if found.difference is None or found.after is None:
        return Check(bound, *ends, f"{found.verdict}, since {found.note}", False)
    falls = (found.difference < 0) is (found.after.higher_is_better is True) and found.difference != 0
    is_met = found.verdict is not Verdict.WORSE if confident else not falls
    return Check(bound, *ends, _met(is_met, confident), is_met)


def _against_previous(config: RequireConfig, subject: Subject, measured: Measured, score: Score) -> Check:
    """Compare with the newest earlier evaluation that is comparable; pass if there is none."""
    bound = "no worse than the previous"
    if score.value is None:
        return Check(bound, None, None, None, "incomplete", False)
    subject.scores(measured)  # so that an error below is about the earlier one
    notes: list[str] = []
    for path, started_at in earlier_evaluations(config.evaluation, measured.record.started_at):
        try:
            found = compare_scores(config.task, score.metric, Subject(BASELINE, {path: read_record(path)}), subject)
        except ValueError as error:
            notes.append(f"{error}")
            continue
        if found.difference is not None:
            return _no_worse(f"no worse than {path} of {format_time(started_at)}", found, config.confident)
        notes.append(f"{path}: {found.note}")
    reason = f"nothing to compare with: {single_line(notes[0])}" if notes else "there is no earlier evaluation"
    return Check(bound, None, None, None, f"met, since {reason}", True)


def earlier_evaluations(output_path: str, before: float) -> list[tuple[str, float]]:
    """List other versions of an evaluation beside it that began before a time, with their times, the newest first.

    Raises:
        ValueError: The path ends in no hash, so its other versions are unknown, or there are too many.
        StoreUnavailableError: The store does not answer.
    """
    from tradewind.storage.files import list_names  # the file store: not while a DAG file is parsed

    folder, _, own = output_path.rstrip("/").rpartition("/")
    if (name := _VERSIONED.fullmatch(own)) is None:
        raise ValueError(
            f"previous=True: {output_path} is not NAME-HASH, so its other versions are not known: give no_worse_than."
        )
    others = [
        join(folder, each)
        for each in list_names(folder)
        if each != own and (found := _VERSIONED.fullmatch(each)) is not None and found[1] == name[1]
    ]
    if len(others) > MAX_VERSIONS:
        raise ValueError(f"previous=True: {name[1]} has more than {MAX_VERSIONS:,} versions: give no_worse_than.")
    records = ((path, found) for path, found in read_existing(others) if isinstance(found, EvaluationRecord))
    dated = [(path, record.started_at) for path, record in records if record.started_at < before]
    return sorted(dated, key=lambda each: (-each[1], each[0]))


def _table(task: str, score: Score, checks: Sequence[Check]) -> list[list[str]]:
    rows = [["task", "metric", "score", "95 % interval", "required", "difference", "95 % interval", "verdict"]]
    for check in checks:
        is_difference = check.bound.startswith("no worse") and check.value is not None
        own = [format_number(score.value), format_interval(score.low, score.high)]
        shown = [f"{check.value:+.4f}", format_interval(check.low, check.high)] if is_difference else ["", ""]
        label = [single_line(task), f"{single_line(score.metric)}{arrow(score.higher_is_better)}"]
        rows.append([*label, *own, single_line(check.bound), *shown, check.verdict])
    return rows
