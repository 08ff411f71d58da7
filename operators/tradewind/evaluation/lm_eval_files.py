"""Read the files of lm-eval: ``results_TIME.json``, and ``samples_TASK_TIME.jsonl`` with a line for each document."""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tradewind.evaluation.results import Sample, TaskResult

_PLAIN_FILTER: Final = "none"
_HASH_CHARS: Final = 12


def save_samples(tracker: Any, folder: Path, samples: Mapping[str, Sequence[Any]]) -> None:
    """Let lm-eval's tracker write the samples of each task below a folder.

    Raises:
        RuntimeError: Not all are written: the tracker itself only logs an error, such as a full disk.
    """
    for task, of_task in samples.items():
        tracker.save_results_samples(task_name=task, samples=of_task)
        files = folder.rglob(glob.escape(f"samples_{task}_{tracker.date_id}.jsonl"))
        saved = sum(file.read_bytes().count(b"\n") for file in files)
        if saved != len(of_task):
            raise RuntimeError(f"lm-eval could save only {saved:,} of {len(of_task):,} samples; its log says why")


def read_lm_eval(folder: str | Path, label: str | None = None) -> list[TaskResult]:
    """Return the results of the tasks in a local folder.

    Args:
        folder: Folder below which lm-eval has written one results file.
        label: Name of the result; the tasks of a group follow it after a slash.

    Raises:
        ValueError: There is no results file, or more than one.
    """
    found = sorted(Path(folder).rglob("results_*.json"))
    if len(found) != 1:
        raise ValueError(f"{folder} has {len(found)} files results_*.json of lm-eval: give the folder of one run.")
    results = json.loads(found[0].read_text())
    time = found[0].stem.removeprefix("results")
    samples = {task: _lines(found[0].with_name(f"samples_{task}{time}.jsonl")) for task in results["configs"]}
    return task_results(results, samples, label)


def task_results(
    results: Mapping[str, Any], samples: Mapping[str, Iterable[Mapping[str, Any]]], label: str | None = None
) -> list[TaskResult]:
    """Return the results of tasks as lm-eval gives them; samples as in its files."""
    groups = _groups(results.get("group_subtasks") or {}, label)
    names = [task for task in results["results"] if task in results["configs"]]
    return [_task_result(results, samples.get(task, ()), task, label, groups.get(task, ())) for task in names]


def _groups(subtasks: Mapping[str, Sequence[str]], label: str | None) -> dict[str, tuple[str, ...]]:
    """Return the groups of each task; the outermost is called by the label."""
    children = {child for group in subtasks.values() for child in group}
    found: dict[str, tuple[str, ...]] = {}

    def walk(group: str, above: tuple[str, ...]) -> None:
        name = group if label is None else label if group not in children else f"{label}/{group}"
        for child in subtasks[group]:
            if subtasks.get(child):
                walk(child, (*above, name))
            else:
                found[child] = (*above, name)

    for group in subtasks:
        if group not in children and subtasks[group]:
            walk(group, ())
    return found


def _task_result(
    results: Mapping[str, Any],
    lines: Iterable[Mapping[str, Any]],
    task: str,
    label: str | None,
    groups: tuple[str, ...],
) -> TaskResult:
    lines = list(lines)
    samples = tuple(_samples(lines, is_choice=results["configs"][task].get("output_type") == "multiple_choice"))
    is_alone = sum(name in results["configs"] for name in results["results"]) == 1
    name = task if label is None else label if is_alone and not groups else f"{label}/{task}"
    better = (results.get("higher_is_better") or {}).get(task) or {}
    metrics = dict(_metrics(results["results"][task]))
    known = {metric for sample in samples for metric in sample.scores} | set(metrics)
    counts = (results.get("n-samples") or {}).get(task) or {}
    shots = (results.get("n-shot") or {}).get(task)
    return TaskResult(
        name=name,
        task=task,
        task_version=str((results.get("versions") or {}).get(task)),
        num_fewshot=shots if type(shots) is int else None,
        higher_is_better={each: better[_plain(each)] for each in known if type(better.get(_plain(each))) is bool},
        metrics=_that_are_no_means(metrics, lines) if any(sample.error for sample in samples) else metrics,
        num_documents=int(counts.get("effective", len(samples))),
        samples=samples,
        chat_template_sha256=results.get("chat_template_sha"),
        groups=groups,
    )


def _metrics(of_task: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield lm-eval's own numbers, whose keys are ``METRIC,FILTER``."""
    for key, value in of_task.items():
        metric, comma, by = key.partition(",")
        if comma and not metric.endswith("_stderr") and isinstance(value, (int, float)) and math.isfinite(value):
            yield _metric(metric, by), float(value)


def _that_are_no_means(metrics: Mapping[str, float], lines: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return NaN for each number that is no mean over the documents: lm-eval counted errors in it as answers."""
    scores: dict[str, list[float]] = {}
    for line in lines:
        for metric, value in _scores(line):
            scores.setdefault(metric, []).append(value)
    means = {metric: math.fsum(values) / len(values) for metric, values in scores.items()}
    return {metric: math.nan for metric, own in metrics.items() if not math.isclose(own, means.get(metric, math.nan))}


def _metric(metric: str, by: str) -> str:
    return metric if by == _PLAIN_FILTER else f"{metric},{by}"


def _plain(metric: str) -> str:
    return metric.partition(",")[0]


def _samples(lines: Iterable[Mapping[str, Any]], *, is_choice: bool) -> Iterator[Sample]:
    """Yield a sample for each document, with the scores of all filters."""
    documents: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        documents.setdefault(f"{line['doc_id']}-{line['doc_hash'][:_HASH_CHARS]}", []).append(line)
    for document, of_document in documents.items():
        first = of_document[0]
        error = first.get("error")
        scores = {name: value for line in of_document for name, value in _scores(line)}
        prompt, target, answer = _texts(first, is_choice=is_choice)
        yield Sample(document, prompt, target, "" if error else answer, {} if error else scores, error)


def _scores(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for metric in line["metrics"]:
        value = line.get(metric)
        if isinstance(value, (bool, int, float)) and math.isfinite(value):
            yield _metric(metric, line["filter"]), float(value)


def _texts(line: Mapping[str, Any], *, is_choice: bool) -> tuple[str, str, str]:
    """Return prompt, target and answer: for a choice the texts of the right one and of the most probable one."""
    requests = [list(each.values()) for _, each in sorted(line["arguments"].items(), key=lambda item: _number(item[0]))]
    prompt, target, given = _text(requests[0][0]), str(line["target"]), line["filtered_resps"]
    if is_choice and all(len(each) > 1 for each in requests):
        choices = [str(each[1]) for each in requests]
        likely = [_likelihood(each) for each in given[: len(choices)]]
        best = max(range(len(likely)), key=likely.__getitem__, default=None)
        right = int(target) if target.isdecimal() and int(target) < len(choices) else None
        return prompt, target if right is None else choices[right], "" if best is None else choices[best]
    first = given[0] if given else ""
    return prompt, target, _text(first)


def _likelihood(response: Any) -> float:
    try:
        value = float(response[0])
    except (TypeError, ValueError, IndexError):
        return -math.inf
    return -math.inf if math.isnan(value) else value


def _text(given: Any) -> str:
    """Return a text; a chat is its messages as JSON."""
    while isinstance(given, list) and len(given) == 1:
        given = given[0]
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _number(name: str) -> int:
    return int(name.rpartition("_")[2])


def _lines(file: Path) -> Iterator[Mapping[str, Any]]:
    with file.open() as lines:
        for line in lines:
            yield json.loads(line)
