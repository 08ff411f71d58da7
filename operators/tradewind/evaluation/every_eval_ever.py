"""Files in the form of Every Eval Ever 0.3.0, which collects evaluations of many harnesses: one JSON, and JSON lines.

They are in the folders that its data store has, so the folder ``data`` can be handed in as it is. Only scores with a
number and a known direction are in it, since the form requires both.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tradewind.datasets.files import atomic_writer, join, write_json
from tradewind.evaluation.results import EvaluationRecord, Sample, Score, TaskRecord, TaskResult
from tradewind.evaluation.scores import finite_score
from tradewind.evaluation.statistics import CONFIDENCE, STUDENT, WILSON
from tradewind.records.parsing import replace_surrogates

SCHEMA_VERSION: Final = "0.3.0"
_HUB: Final = re.compile(r"hub:([^/@]+)/([^/@]+)@.*", re.DOTALL)
_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9._-]+")
_RESERVED: Final = re.compile(r"data|(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
"""Names that the data store or a file system uses itself."""
MAX_TEXT_CHARS: Final = 100_000
"""Longer prompts, targets and answers lose their middle in the files of samples."""


def write_every_eval_ever(folder: str, record: EvaluationRecord, results: Sequence[TaskResult]) -> None:
    """Write both files below ``folder``; none if no score has a number."""
    scores = [(name, task, score) for name, task in record.entries() for score in task.scores if _is_known(score)]
    if not scores:
        return
    own = {(name, score.metric) for name, _, score in scores}
    model = _model_id(record)
    place = f"data/{_part(record.evaluation)}/{model}"
    content = json.dumps(record.as_json(), sort_keys=True)
    name = uuid.UUID(bytes=hashlib.sha256(content.encode()).digest()[:16], version=4)
    rows = (
        _instance(record, model, result.name, sample, metric, score)
        for result in results
        for sample in sorted(result.samples, key=lambda each: each.document)
        for metric in sorted(sample.scores)
        if (result.name, metric) in own and (score := finite_score(sample, metric)) is not None
    )
    samples = f"{place}/{name}_samples.jsonl"
    total, checksum = _write_lines(join(folder, samples), rows)
    detailed = {
        "format": "jsonl",
        "file_path": samples,
        "hash_algorithm": "sha256",
        "checksum": checksum,
        "total_rows": total,
    }
    aggregate = _aggregate(record, model, scores) | ({"detailed_evaluation_results": detailed} if total else {})
    write_json(join(folder, f"{place}/{name}.json"), aggregate)


def _is_known(score: Score) -> bool:
    return score.value is not None and score.higher_is_better is not None


def _part(text: str) -> str:
    """Return a name as a part of a path on any file system."""
    part = _UNUSUAL.sub("_", text).strip("._")[:100].rstrip(".") or "unnamed"
    return f"_{part}" if _RESERVED.fullmatch(part) else part


def _model_id(record: EvaluationRecord) -> str:
    """Return the id of a model in the hub's form; ``local/`` for one of one's own."""
    if found := _HUB.fullmatch(record.model.path):
        return f"{_part(found[1])}/{_part(found[2])}"
    return f"local/{_part(record.model.name)}"


def _evaluation_id(record: EvaluationRecord, model: str) -> str:
    return f"{record.evaluation}/{model}/{record.ended_at:.0f}"


def _aggregate(record: EvaluationRecord, model: str, scores: Sequence[tuple[str, TaskRecord, Score]]) -> dict[str, Any]:
    serving = record.serving
    engine = {"name": serving.engine, **({"version": serving.version} if serving.version else {})}
    details = {"path": record.model.path, "version": record.model.version, "hardware": serving.hardware}
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": _evaluation_id(record, model),
        "evaluation_timestamp": f"{record.started_at:.0f}",
        "retrieved_timestamp": f"{record.ended_at:.0f}",
        "source_metadata": {
            "source_name": "Tradewind",
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "other",
        },
        "eval_library": {"name": record.evaluation, "version": record.harness_version or "unknown"},
        "model_info": {
            "name": record.model.name,
            "id": model,
            "inference_engine": engine,
            "additional_details": {
                "deployment_type": "unknown" if serving.engine == "api" else "self_deployed",
                "model_availability": "unknown",
                **_texts(details),
            },
        },
        "evaluation_results": [_result(*each) for each in scores],
    }


def _result(name: str, task: TaskRecord, score: Score) -> dict[str, Any]:
    details = {
        "documents": task.num_documents,
        "attempted": score.attempted,
        "errors": score.errors,
        "coverage": f"{score.coverage:.4f}",
        "task_version": task.task_version,
        "num_fewshot": task.num_fewshot,
        "pooled_tasks": ", ".join(task.members) or None,
        "chat_template_sha256": task.chat_template_sha256,
    }
    interval = {"lower": score.low, "upper": score.high, "confidence_level": CONFIDENCE, "method": score.interval}
    uncertainty = {"num_samples": score.scored, **({} if score.low is None else {"confidence_interval": interval})}
    return {
        "evaluation_result_id": f"{name}/{score.metric}",
        "evaluation_name": name,
        "source_data": {"dataset_name": task.task, "source_type": "other"},
        "metric_config": _metric(score),
        "score_details": {"score": score.value, "details": _texts(details), "uncertainty": uncertainty},
    }


def _metric(score: Score) -> dict[str, Any]:
    """Return the description of a metric; bounds are known of the scores that are from 0 to 1 by document."""
    is_open = score.low is None or score.interval == STUDENT
    return {
        "metric_id": score.metric,
        "metric_name": score.metric,
        "lower_is_better": not score.higher_is_better,
        "score_type": "binary" if score.interval == WILSON else "continuous",
        "min_score": "-Infinity" if is_open else 0,
        "max_score": "Infinity" if is_open else 1,
    }


def _instance(
    record: EvaluationRecord, model: str, task: str, sample: Sample, metric: str, score: float
) -> dict[str, Any]:
    prompt, target, answer = map(bounded_text, (sample.prompt, sample.target, sample.answer))
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": _evaluation_id(record, model),
        "model_id": model,
        "evaluation_name": task,
        "evaluation_result_id": f"{task}/{metric}",
        "sample_id": sample.document,
        "sample_hash": hashlib.sha256(f"{prompt}{target}".encode()).hexdigest(),
        "interaction_type": "single_turn",
        "input": {"raw": prompt, "reference": [target]},
        "output": {"raw": [answer]},
        "answer_attribution": [
            {
                "turn_idx": 0,
                "source": "output.raw",
                "extracted_value": answer,
                "extraction_method": metric,
                "is_terminal": True,
            }
        ],
        "evaluation": {"score": score, "is_correct": score == 1},
    }


def _write_lines(path: str, rows: Iterator[Mapping[str, Any]]) -> tuple[int, str]:
    """Write rows as JSON lines; return their number and the SHA-256 of the file."""
    digest, total = hashlib.sha256(), 0
    with atomic_writer(path) as file:
        for row in rows:
            line = replace_surrogates(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n").encode()
            file.write(line)
            digest.update(line)
            total += 1
    return total, digest.hexdigest()


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def bounded_text(text: str) -> str:
    """Return a text for a file of samples: without its middle if it is too long, and without half characters."""
    if len(text) > MAX_TEXT_CHARS:
        half = MAX_TEXT_CHARS // 2
        text = f"{text[:half]} … {text[-half:]}"
    return replace_surrogates(text)
