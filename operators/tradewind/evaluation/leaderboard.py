"""Leaderboard of evaluations: a ranking for each task and metric, in which scores that may be equal share a rank.

A rank is one more than the number of scores that are better with confidence: whose difference, paired by document, has
a 95 % interval without 0. Only scores of the same task version with as many examples in the prompt share a ranking.
Nothing is averaged over tasks, since a mean of unlike numbers has no meaning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from tradewind.datasets.files import join, write_text
from tradewind.evaluation.compare import CHANCE, Comparison, Verdict, compare_scores
from tradewind.evaluation.compiled import check_evaluations, write_rows
from tradewind.evaluation.evaluated import Measured, Subject, read_subjects
from tradewind.evaluation.results import Score
from tradewind.evaluation.statistics import NONE
from tradewind.evaluation.summary import arrow, format_interval, format_number, status_text
from tradewind.recipes.comparing.runs import missing_runs_error, missing_runs_section
from tradewind.steps.fields import PATH, TEXT, TEXTS, check_fields
from tradewind.steps.needs import needs
from tradewind.text import as_markdown, did_you_mean, format_columns, markdown_text, single_line

MAX_KNOWN: Final = 200
"""Names that a message about an unknown one may suggest."""
_ABOUT: Final = (
    "A rank is one more than the number of scores that are better with confidence, so scores that may be equal share "
    "one. Differences are those to the first, paired by document where the prompts are the same. There is no mean over "
    "unlike tasks."
)


@dataclass(frozen=True)
class Entry:
    """A score in a ranking.

    Attributes:
        label: Whose score it is.
        rank: From 1; None if the score has no interval or no known direction, so nothing is better with confidence.
        to_first: Comparison with the first of the ranking; None for that itself.
    """

    label: str
    measured: Measured
    score: Score
    rank: int | None
    to_first: Comparison | None


@dataclass(frozen=True)
class Ranking:
    """All comparable scores of a metric of a task, the best first, and why the other labels have none.

    Attributes:
        title: Such as ``arc_easy acc ↑ (version 1, 10 shots)``.
        gaps: Label → why it has no number here.
    """

    task: str
    metric: str
    title: str
    entries: Sequence[Entry]
    gaps: Mapping[str, str]


@dataclass(frozen=True)
class LeaderboardConfig:
    """Evaluations of ``write_leaderboard``."""

    evaluations: Mapping[str, Any]
    """Label → output of an evaluation, or a list of some, whose tasks have different names."""
    output_path: str
    """Gets ``leaderboard.md``, ``.csv`` and ``.jsonl``."""
    tasks: Sequence[str] | None = None
    """Names of tasks and groups to rank by; None for all."""
    metrics: Sequence[str] | None = None
    """Metrics to rank by; None for all."""
    title: str = "Leaderboard"
    """Heading of the page."""

    def __post_init__(self) -> None:
        check_evaluations(self.evaluations)
        check_fields(self, output_path=PATH, tasks=TEXTS.or_none(), metrics=TEXTS.or_none(), title=TEXT)


@needs("pyarrow", extra="data")
def write_leaderboard(config: LeaderboardConfig) -> dict[str, Any]:
    """Write the three files; return ``first``: label → number of rankings with others, none of whom is better.

    Raises:
        MissingRunsError: An evaluation has no record; the leaderboard of the others is written.
        ValueError: A task or metric was not measured, or a file is not what an evaluation writes.
    """
    subjects, missing = read_subjects(config.evaluations)
    rankings = rank(subjects, config.tasks, config.metrics)
    if rankings:
        _write(config, subjects, rankings, missing_runs_section(missing))
    if missing:
        done = f"The others are in {join(config.output_path, 'leaderboard.md')}." if rankings else ""
        raise missing_runs_error(len(config.evaluations), missing, done)
    return {"rankings": len(rankings), "first": {each.label: _places(each, rankings).count(1) for each in subjects}}


def rank(
    subjects: Sequence[Subject], tasks: Sequence[str] | None = None, metrics: Sequence[str] | None = None
) -> list[Ranking]:
    """Rank subjects by each metric of each task.

    Raises:
        ValueError: One of ``tasks`` or ``metrics`` was not measured by any.
    """
    boards = {
        (*question, metric): {label: each for label, each in found.items() if each.task.score(metric) is not None}
        for question, found in by_question(subjects).items()
        for metric in metrics_of(found.values())
    }
    names = dict.fromkeys(each.name for subject in subjects for each in subject.measured())
    _check_names("tasks", tasks, names)
    _check_names("metrics", metrics, {key[-1] for key in boards})
    ranked = [
        _ranking(subjects, key[0], key[-1], found)
        for key, found in boards.items()
        if (tasks is None or key[0] in tasks) and (metrics is None or key[-1] in metrics)
    ]
    lacking = names.keys() - {key[0] for key in boards}
    asked = [name for name in names if name in lacking and (tasks is None or name in tasks)]
    return ranked + [_without_score(subjects, name) for name in asked]


def by_question(subjects: Sequence[Subject]) -> dict[tuple[Any, ...], dict[str, Measured]]:
    """Return question → label → what was measured; only scores of one question are comparable."""
    found: dict[tuple[Any, ...], dict[str, Measured]] = {}
    for subject in subjects:
        for each in subject.measured():
            found.setdefault(_question(each), {})[subject.label] = each
    return found


def metrics_of(measured: Iterable[Measured]) -> list[str]:
    """Return the names of all metrics, in order of appearance."""
    return list(dict.fromkeys(score.metric for each in measured for score in each.task.scores))


def _without_score(subjects: Sequence[Subject], task: str) -> Ranking:
    """Return the ranking of a task without any score."""
    gaps = {each.label: _gap_of(each.find(task), "") for each in subjects}
    return Ranking(task, "", task, (), gaps)


def _question(each: Measured) -> tuple[Any, ...]:
    """Return what scores of one ranking have in common, the name first."""
    return each.name, each.task.task, each.task.task_version, each.task.num_fewshot, each.task.members


def _check_names(field: str, given: Sequence[str] | None, known: Collection[str]) -> None:
    for name in given or ():
        if name not in known:
            raise ValueError(f"{field}: no evaluation has {name!r}; {did_you_mean(name, sorted(known)[:MAX_KNOWN])}")


def _ranking(subjects: Sequence[Subject], task: str, metric: str, found: Mapping[str, Measured]) -> Ranking:
    scored = {
        label: (each, score)
        for label, each in found.items()
        if (score := each.task.score(metric)) is not None and score.value is not None
    }
    first = next(iter(found.values()))
    better = next((score.higher_is_better for _, score in scored.values()), None)
    sign = -1 if better else 1
    labels = sorted(scored, key=lambda label: sign * (scored[label][1].value or 0.0))
    by_label = {subject.label: subject for subject in subjects}
    compared = {
        (one, other): compare_scores(task, metric, by_label[one], by_label[other])
        for one, other in combinations(labels, 2)
    }
    entries = [
        Entry(label, *scored[label], _rank(label, scored[label][1], compared), compared.get((labels[0], label)))
        for label in labels
    ]
    gaps = {each.label: _gap(each, task, metric, found) for each in subjects if each.label not in scored}
    return Ranking(task, metric, ranking_title(task, metric, first, better), entries, gaps)


def _rank(label: str, score: Score, compared: Mapping[tuple[str, str], Comparison]) -> int | None:
    if score.interval == NONE or score.higher_is_better is None:
        return None
    lost = sum(
        (one == label and each.verdict is Verdict.BETTER) or (other == label and each.verdict is Verdict.WORSE)
        for (one, other), each in compared.items()
    )
    return 1 + lost


def _gap(subject: Subject, task: str, metric: str, found: Mapping[str, Measured]) -> str:
    """Say why a subject has no number in a ranking."""
    if (own := found.get(subject.label) or subject.find(task)) is None:
        return "not measured"
    asked = next(iter(found.values())).task
    if _question(own) != _question(next(iter(found.values()))):
        other = {"version": own.task.task_version, "shots": own.task.num_fewshot}
        mine = {"version": asked.task_version, "shots": asked.num_fewshot}
        named = ", ".join(f"{what} {single_line(value, 40)}" for what, value in other.items() if value != mine[what])
        return f"measured with {named or 'another task of this name'}, in a ranking of its own"
    return _gap_of(own, metric)


def _gap_of(own: Measured | None, metric: str) -> str:
    if own is None:
        return "not measured"
    score = own.task.score(metric)
    count = 0 if score is None else score.scored
    reason = f": {own.task.error}" if own.task.error else ""
    return f"{status_text(own.task, score)}, with {count:,} of {own.task.num_documents:,} documents{reason}"


def ranking_title(task: str, metric: str, measured: Measured, better: bool | None) -> str:
    """Return a title such as ``arc_easy acc ↑ (version 1, 10 shots)``."""
    shots = "" if measured.task.num_fewshot is None else f", {measured.task.num_fewshot} shots"
    pooled = f", {len(measured.task.members)} tasks pooled by document" if measured.task.members else ""
    return f"{task} {metric}{arrow(better)} (version {measured.task.task_version}{shots}{pooled})"


def _places(subject: Subject, rankings: Sequence[Ranking]) -> list[int | None]:
    """Return the ranks of a subject, in rankings with others."""
    entries = [entry for each in rankings if len(each.entries) > 1 for entry in each.entries]
    return [entry.rank for entry in entries if entry.label == subject.label]


def _write(
    config: LeaderboardConfig, subjects: Sequence[Subject], rankings: Sequence[Ranking], missing: Sequence[str]
) -> None:
    short = [["label", "model", "ranked first, also with others", "rankings with others"]]
    for subject in subjects:
        model = next(iter(subject.records.values())).model.name
        places = _places(subject, rankings)
        short.append([subject.label, single_line(model), f"{places.count(1)}", f"{len(places)}"])
    print("\n".join(format_columns(short)), flush=True)
    write_rows(join(config.output_path, "leaderboard"), _COLUMNS, [row for each in rankings for row in _rows(each)])
    parts = [f"# {markdown_text(config.title)}", _ABOUT, as_markdown(short)]
    parts += [part for each in rankings for part in _section(each)]
    write_text(join(config.output_path, "leaderboard.md"), "\n\n".join([*parts, CHANCE, *missing]) + "\n")


def _section(ranking: Ranking) -> Iterator[str]:
    """Yield the Markdown of a ranking: heading, table, notes and gaps."""
    yield f"## {markdown_text(single_line(ranking.title))}"
    rows = [["rank", "label", "score", "95 % interval", "difference to the first", "95 % interval", "documents"]]
    for each in ranking.entries:
        to_first = each.to_first
        difference = "" if to_first is None or to_first.difference is None else f"{to_first.difference:+.4f}"
        between = "" if to_first is None else format_interval(to_first.low, to_first.high)
        own = [format_number(each.score.value), format_interval(each.score.low, each.score.high)]
        documents = f"{each.score.scored:,} of {each.measured.task.num_documents:,}"
        rows.append([f"{each.rank or ''}", each.label, *own, difference, between, documents])
    if ranking.entries:
        yield as_markdown(rows)
    lines = [f"{each.label}: {each.to_first.note}" for each in ranking.entries if each.to_first and each.to_first.note]
    lines += [f"{label}: {reason}" for label, reason in ranking.gaps.items()]
    if lines:
        yield "\n".join(f"- {markdown_text(single_line(line))}" for line in lines)


def _rows(ranking: Ranking) -> Iterator[dict[str, Any]]:
    """Yield the rows of a ranking for programs, those without a number last."""
    for each in ranking.entries:
        score, first, task = each.score, each.to_first, each.measured.task
        yield {
            "task": ranking.task,
            "metric": ranking.metric,
            "task_version": task.task_version,
            "num_fewshot": task.num_fewshot,
            "label": each.label,
            "rank": each.rank,
            "score": score.value,
            "low": score.low,
            "high": score.high,
            "difference_to_first": None if first is None else first.difference,
            "difference_low": None if first is None else first.low,
            "difference_high": None if first is None else first.high,
            "documents": score.scored,
            "gap": (first.note or None) if first is not None else None,
        }
    for label, reason in ranking.gaps.items():
        empty = dict.fromkeys(_COLUMNS)
        yield empty | {"task": ranking.task, "metric": ranking.metric, "label": label, "gap": reason}


_COLUMNS: Final = (
    "task", "metric", "task_version", "num_fewshot", "label", "rank", "score", "low", "high", "difference_to_first",
    "difference_low", "difference_high", "documents", "gap",
)  # fmt: skip
