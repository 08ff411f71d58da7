"""Files of an evaluation: samples, summary, Every Eval Ever's, and the record, which is written last."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from tradewind.datasets.files import atomic_writer, join, write_text
from tradewind.evaluation.every_eval_ever import bounded_text, write_every_eval_ever
from tradewind.evaluation.results import (
    MAX_RECORD_BYTES,
    MAX_TASKS,
    RECORD_FILE,
    SAMPLES_FILE,
    SCORE_COLUMN,
    EvaluationRecord,
    TaskResult,
)
from tradewind.evaluation.scores import (
    TaskScores,
    finite_score,
    group_records,
    prompt_sha256,
    task_records,
    worst_status,
)
from tradewind.evaluation.summary import summary_markdown
from tradewind.records.attempts import BadAttemptError, newest_attempt
from tradewind.records.parsing import replace_surrogates
from tradewind.storage import file_system_at, open_file
from tradewind.storage.filesystems import remove_file
from tradewind.text import single_line

SUMMARY_FILE: Final = "summary.md"
MAX_DOCUMENTS: Final = 5_000_000
"""Bound for the rows of a file of samples that is read."""
_TEXTS: Final = ("task", "document", "prompt", "prompt_sha256", "target", "answer", "error")
_KEYS: Final = ("task", "document", "prompt_sha256")
_MAX_KEY_BYTES: Final = 10_000
_BATCH_ROWS: Final = 1000
_VERSION: Final = re.compile(r"-([0-9a-f]{6})(?![^/])")
"""End of the name of an output."""


def write_files(output_path: str, record: EvaluationRecord, results: Sequence[TaskResult]) -> EvaluationRecord:
    """Write all files, and return the record with its tasks; see ``write_results``."""
    record = _with_versions(record, output_path)
    results = [_bounded_result(result) for result in sorted(results, key=lambda each: each.name)]
    tasks = task_records(results)
    groups = group_records(results, tasks)
    if len(tasks) + len(groups) > MAX_TASKS:
        raise ValueError(f"The evaluation has {len(tasks) + len(groups):,} tasks; a record holds {MAX_TASKS:,}.")
    record = dataclasses.replace(record, tasks=tasks, groups=groups, status=worst_status(record.status, tasks))
    content = json.dumps(record.as_json(), indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
    content = replace_surrogates(f"{content}\n")
    if len(content.encode()) > MAX_RECORD_BYTES:
        raise ValueError(f"The record of {len(tasks):,} tasks is larger than {MAX_RECORD_BYTES:,} bytes.")
    remove_file(*file_system_at(join(output_path, RECORD_FILE)))
    write_samples(join(output_path, SAMPLES_FILE), results)
    write_every_eval_ever(join(output_path, "every_eval_ever"), record, results)
    write_text(join(output_path, SUMMARY_FILE), replace_surrogates(summary_markdown(record)))
    write_text(join(output_path, RECORD_FILE), content)
    return record


def _with_versions(record: EvaluationRecord, output_path: str) -> EvaluationRecord:
    """Return the record with the commit of the code and the version of the model, as far as paths and records say."""
    commit, model = record.commit, record.model
    if commit is None:
        with suppress(BadAttemptError):
            attempt = newest_attempt(output_path)
            commit = None if attempt is None else attempt.code_commit
    if model.version is None and (found := _VERSION.findall(model.path)):
        model = dataclasses.replace(model, version=found[-1])
    return dataclasses.replace(record, commit=commit, model=model)


def _bounded_result(result: TaskResult) -> TaskResult:
    """Return the result with errors on one line of bounded length, since libraries put whole requests into them."""
    samples = tuple(
        sample if sample.error is None else dataclasses.replace(sample, error=single_line(sample.error) or "unknown")
        for sample in result.samples
    )
    error = None if result.error is None else single_line(result.error)
    return dataclasses.replace(result, samples=samples, error=error)


def write_samples(path: str, results: Sequence[TaskResult]) -> None:
    """Write the samples as Parquet, a row for each, sorted by task and document."""
    metrics = sorted({metric for result in results for sample in result.samples for metric in sample.scores})
    schema = pa.schema(
        [pa.field(name, pa.string(), nullable=name == "error") for name in _TEXTS]
        + [pa.field(f"{SCORE_COLUMN}{metric}", pa.float64()) for metric in metrics]
    )
    with atomic_writer(path) as file, parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        rows = _sample_rows(results, metrics)
        while batch := list(islice(rows, _BATCH_ROWS)):
            writer.write_table(pa.Table.from_pylist(batch, schema))


def _sample_rows(results: Sequence[TaskResult], metrics: Sequence[str]) -> Iterator[dict[str, Any]]:
    for result in results:
        for sample in sorted(result.samples, key=lambda each: each.document):
            texts = {"prompt": sample.prompt, "target": sample.target, "answer": sample.answer}
            yield {
                "task": result.name,
                "document": replace_surrogates(sample.document),
                "prompt_sha256": prompt_sha256(sample),
                "error": sample.error,
                **{name: bounded_text(text) for name, text in texts.items()},
                **{f"{SCORE_COLUMN}{metric}": finite_score(sample, metric) for metric in metrics},
            }


def read_scores(output_path: str, tasks: Mapping[str, Any] | Sequence[str]) -> dict[str, TaskScores]:
    """Read the scores of these tasks of an evaluation by document.

    Raises:
        ValueError: There is no file of samples, or it is not what an evaluation writes; the message names it.
    """
    path = join(output_path, SAMPLES_FILE)
    found = {task: TaskScores() for task in tasks}
    try:
        with open_file(path) as file:
            names = parquet.read_schema(file).names
            if missing := [name for name in _KEYS if name not in names]:
                raise _FormatError(f"it has no column {missing[0]}")
            # As dictionaries: a few bytes of a packed column may be as many gigabytes of equal texts.
            _collect_scores(parquet.ParquetFile(file, read_dictionary=list(_KEYS)), found)
    except FileNotFoundError:
        raise ValueError(f"There is no {path}: give the output of an evaluation that has ended.") from None
    except (pa.ArrowException, OSError, _FormatError) as error:
        reason = single_line(error).rstrip(".")
        raise ValueError(f"{path} holds no samples of an evaluation, because {reason}: force that step once.") from None
    return found


class _FormatError(Exception):
    """Why a file is none of samples, in words that follow "because"."""


def _collect_scores(file: Any, found: Mapping[str, TaskScores]) -> None:
    names = file.schema_arrow.names
    metrics = [name for name in names if name.startswith(SCORE_COLUMN)]
    kinds = {name: file.schema_arrow.field(name).type for name in metrics}
    if wrong := [name for name, kind in kinds.items() if not pa.types.is_floating(kind)]:
        raise _FormatError(f"{single_line(wrong[0])} holds no numbers")
    if file.metadata.num_rows > MAX_DOCUMENTS:
        raise _FormatError(f"it has more than {MAX_DOCUMENTS:,} rows")
    for batch in file.iter_batches(_BATCH_ROWS, columns=[*_KEYS, *metrics]):
        for name in _KEYS:
            _check_lengths(batch.column(name), name)
        for row in batch.to_pylist():
            task, document, prompt = (row[name] for name in _KEYS)
            if (scores := found.get(task)) is None:
                continue
            if not isinstance(document, str) or not isinstance(prompt, str):
                raise _FormatError("a document or its hash is no text")
            if document in scores.prompts:
                raise _FormatError(f"document {single_line(document, 40)!r} of {single_line(task, 40)} occurs twice")
            scores.prompts[document] = prompt
            for name in metrics:
                if row[name] is not None and math.isfinite(row[name]):
                    scores.scores.setdefault(name.removeprefix(SCORE_COLUMN), {})[document] = row[name]


def _check_lengths(column: Any, name: str) -> None:
    texts = column.dictionary if pa.types.is_dictionary(column.type) else column
    if not pa.types.is_string(texts.type):
        raise _FormatError(f"{name} is no column of texts")
    if (pc.max(pc.binary_length(texts)).as_py() or 0) > _MAX_KEY_BYTES:
        raise _FormatError(f"a text in {name} is longer than {_MAX_KEY_BYTES:,} bytes")
