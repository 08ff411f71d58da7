"""Read the files of one run of HELM: answers and scores by document, and HELM's own means.

They come from another process, which may have written half of them: sizes are bounded, and each value that is used is
checked.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tradewind.evaluation.results import Sample, TaskResult
from tradewind.records.parsing import (
    COUNT,
    FLAG,
    NUMBER,
    OBJECT,
    RAW_TEXT,
    TEXT,
    RecordFormatError,
    list_of,
    object_of,
    parse,
    parse_fields,
)
from tradewind.storage.bounded_read import LARGE, read_local

RUN_FILES: Final = ("run_spec.json", "scenario_state.json", "stats.json", "per_instance_stats.json")
_BOOKKEEPING: Final = re.compile(
    r"(num|training|inference|finish_reason)_.*|batch_size|prompt_truncated|predicted_index"
)
"""Counts and costs among the metrics."""
_OBJECTS: Final = list_of(OBJECT)
_BETTER: Final = object_of(FLAG.or_null())


class HelmRunError(ValueError):
    """A file of a run is missing or invalid; the message names it."""


def read_run(folder: Path, name: str, version: str, better: Mapping[str, bool | None]) -> TaskResult:
    """Return the result of a run.

    Args:
        folder: The run's folder.
        name: Name of the result.
        version: Version of HELM.
        better: Metric → whether higher is better; None for what is no quality of answers.

    Raises:
        HelmRunError: A file is missing, too large, or of another form.
    """
    with _reading(folder / "run_spec.json") as content:
        spec = parse_fields(content, {"name": TEXT, "adapter_spec": OBJECT}, ("name", "adapter_spec"))
        shots = parse_fields(spec["adapter_spec"], {"max_train_instances": COUNT}).get("max_train_instances")
    with _reading(folder / "per_instance_stats.json") as content:
        scores = _scores(content, better)
    with _reading(folder / "scenario_state.json") as content:
        samples = _samples(content, scores)
    with _reading(folder / "stats.json") as content:
        means = dict(_means(content, better))
    if any(sample.error for sample in samples):
        means = {}  # HELM has scored an error as an empty answer
    used = {metric for sample in samples for metric in sample.scores} | means.keys()
    return TaskResult(
        name=name,
        task=spec["name"].partition(":")[0],
        task_version=f"crfm-helm {version}",
        num_fewshot=shots,
        higher_is_better={metric: value for metric in used if (value := better.get(metric)) is not None},
        metrics=means,
        num_documents=len(samples),
        samples=samples,
    )


def read_metrics(file: Path) -> dict[str, bool | None]:
    """Return the table that ``isolated/run_helm.py`` wrote: metric → whether higher is better.

    Raises:
        HelmRunError: It is missing or invalid.
    """
    with _reading(file) as content:
        if not _BETTER.fits(content):
            raise RecordFormatError("it is no object of true, false and null")
        better: dict[str, bool | None] = content
        return better


@contextmanager
def _reading(file: Path) -> Iterator[Any]:
    """Yield the JSON of a file; name the file if it, or what the block finds in it, is invalid."""
    try:
        content = read_local(file, LARGE)
        if content.flaw is not None:
            raise RecordFormatError(content.flaw)
        yield parse(content.text)
    except OSError as error:
        raise HelmRunError(f"HELM's {file.name} cannot be read: {error.strerror or error}.") from None
    except RecordFormatError as flaw:
        raise HelmRunError(f"HELM's {file.name} cannot be used, because {flaw}.") from None


def _samples(content: Any, scores: Mapping[str, Mapping[str, float]]) -> tuple[Sample, ...]:
    requests: dict[str, list[dict[str, Any]]] = defaultdict(list)
    states = parse_fields(content, {"request_states": _OBJECTS}, ("request_states",))["request_states"]
    for state in states:
        given = parse_fields(state, _STATE, _STATE, "a request's")
        instance = parse_fields(given["instance"], _INSTANCE, ("id",), "an instance's")
        if "perturbation" not in given["instance"]:
            requests[instance["id"]].append(given | {"instance": instance})
    return tuple(_sample(document, group, scores.get(document, {})) for document, group in requests.items())


def _sample(document: str, requests: Sequence[Mapping[str, Any]], scores: Mapping[str, float]) -> Sample:
    """Return a document's sample: several requests ask for its choices one by one, or with other examples."""
    results = [parse_fields(each["result"], _RESULT, ("success", "completions"), "a result's") for each in requests]
    texts = [_text(completion) for result in results for completion in result["completions"]]
    errors = [result.get("error") or "The request failed." for result in results if not result["success"]]
    prompt = parse_fields(requests[0]["request"], {"prompt": RAW_TEXT}, ("prompt",), "a request's")["prompt"]
    error = errors[0] if errors else None if scores else "HELM has no score of this document."
    return Sample(
        document=document,
        prompt=prompt,
        target="\n".join(_right_answers(requests[0]["instance"].get("references", []))),
        answer="\n".join(texts),
        scores={} if error else scores,
        error=error,
    )


def _text(completion: Any) -> str:
    text: str = parse_fields(completion, {"text": RAW_TEXT}, ("text",), "a completion's")["text"]
    return text


def _right_answers(references: Sequence[Any]) -> Iterator[str]:
    for reference in references:
        given = parse_fields(reference, {"output": OBJECT, "tags": list_of(TEXT)}, ("output",), "a reference's")
        if "correct" in given.get("tags", ()):
            yield _text(given["output"])


def _scores(content: Any, better: Mapping[str, bool | None]) -> dict[str, dict[str, float]]:
    """Return document → metric → its mean over HELM's trials, without what HELM measured on disturbed prompts."""
    if not _OBJECTS.fits(content):
        raise RecordFormatError("it is no list of objects")
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in content:
        given = parse_fields(each, {"instance_id": TEXT, "stats": _OBJECTS}, ("instance_id", "stats"), "a document's")
        if "perturbation" not in each:
            for metric, mean in _qualities(given["stats"], better):
                found[given["instance_id"]][metric].append(mean)
    return {
        document: {metric: sum(values) / len(values) for metric, values in metrics.items()}
        for document, metrics in found.items()
    }


def _means(content: Any, better: Mapping[str, bool | None]) -> Iterator[tuple[str, float]]:
    if not _OBJECTS.fits(content):
        raise RecordFormatError("it is no list of objects")
    return _qualities(content, better)


def _qualities(stats: Sequence[Any], better: Mapping[str, bool | None]) -> Iterator[tuple[str, float]]:
    """Yield the metrics that measure answers, on prompts without perturbation, and their means."""
    for each in stats:
        stat = parse_fields(each, {"name": OBJECT, "mean": NUMBER}, ("name",), "a statistic's")
        metric = parse_fields(stat["name"], {"name": TEXT}, ("name",), "a statistic's name's")["name"]
        is_quality = better.get(metric, False) is not None and not _BOOKKEEPING.fullmatch(metric)
        if "mean" in stat and "perturbation" not in stat["name"] and is_quality:
            yield metric, stat["mean"]


_STATE: Final = {"instance": OBJECT, "request": OBJECT, "result": OBJECT}
_INSTANCE: Final = {"id": TEXT, "references": _OBJECTS}
_RESULT: Final = {"success": FLAG, "completions": _OBJECTS, "error": TEXT.or_null()}
