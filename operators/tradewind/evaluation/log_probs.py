"""Perplexity and bits per byte of a model on named sets of texts, on a CPU or on all hosts of a slice.

The output has, for each set, its numbers (``sets/NAME.json``) and a row for each text (``sets/NAME.parquet``), then
``log_probs.json`` and ``log_probs.md`` with all sets, and last the files of an evaluation, in which a set is a task and
a text a document, for comparisons and gates. An attempt after a loss keeps the sets that are done.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.files import basename, join, parent, remove_unfinished, write_json, write_text
from tradewind.evaluation.results import EvaluationRecord, Model, Sample, Serving, Status, TaskResult, write_results
from tradewind.evaluation.scoring import (
    CHECKPOINT,
    EXPORT,
    SETS,
    ScoringConfig,
    check_finite,
    check_inputs,
    check_vocabulary,
    is_first_host,
    length_of,
    marins_model,
    marins_sets,
    scoring_step,
    write_columns,
)
from tradewind.recipes.steps import naming_step
from tradewind.recipes.stored_json import read_object
from tradewind.records.parsing import COUNT, NUMBER
from tradewind.steps import ExecutorStep
from tradewind.steps.fields import check_fields, integer
from tradewind.steps.needs import needs
from tradewind.storage import open_file
from tradewind.text import as_markdown, truncated_repr

if TYPE_CHECKING:
    from tradewind.evaluation.perplexity import Documents

RESULT_FILE: Final = "log_probs.json"
SCHEMA: Final = "tradewind.log_probs/1"
BY_DOCUMENT: Final = "_by_document"
"""Ending of a metric whose score is the mean over texts, each of which counts once, however long it is."""
_ABOUT: Final = "Perplexity and bits per byte of a model on named sets of texts."


@dataclass(frozen=True)
class LogProbsConfig(ScoringConfig):
    """Config of ``measure_log_probs``."""

    seq_len: int | None = None
    """Tokens of a sequence; None for the model's context, at most 4,096."""
    max_sequences: int | None = None
    """Sequences of each set at most, from its beginning; None for all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, seq_len=integer(2).or_none(), max_sequences=integer(1).or_none())


@naming_step
def evaluate_log_probs(name: str, model: Any, sets: Mapping[str, Any], **options: Any) -> ExecutorStep:
    """Return a step that measures perplexity and bits per byte of a model on named sets of texts.

    Args:
        name: Name of the step.
        model: A training, an export, a checkpoint, or ``hub:ORGANISATION/NAME@COMMIT``.
        sets: Name → token cache or documents: steps, or paths.
        options: Of ``ExecutorStep``, such as ``resources``, and of ``LogProbsConfig``; ``model_config`` is that of a
            checkpoint without an export, as ``train`` takes it. How many sequences are computed at once does not count.

    Raises:
        ValueError: A set is no input, its name is no path, or an option is a field of neither or invalid.
    """
    given = {"model": model, "sets": sets, **options}
    return scoring_step(name, "evaluate_log_probs", measure_log_probs, LogProbsConfig, _ABOUT, **given)


@needs("jax", "levanter", "pyarrow")
def measure_log_probs(config: LogProbsConfig) -> dict[str, Any]:
    """Measure each set that is not done yet; write and return the numbers of all under ``sets``.

    Raises:
        ValueError: The model or a set cannot be read, or they do not fit each other.
    """
    from tradewind.recipes.lm import levanter_parts

    levanter_parts.quiet_libraries()
    started_at = time.time()
    check_inputs(config)
    levanter_parts.keep_compilations(config.output_path)
    done = {name: numbers for name in config.sets if (numbers := _kept(config.output_path, name)) is not None}
    if missing := [name for name in config.sets if name not in done]:
        done |= _measure_missing(config, missing)
    sets = {name: done[name] for name in config.sets}
    weights = EXPORT if config.source().uses_export else CHECKPOINT
    result = {"schema": SCHEMA, "model": {"path": config.model_path, "weights": weights}, "sets": sets}
    if is_first_host():
        write_text(join(config.output_path, "log_probs.md"), summary(sets))
        write_json(join(config.output_path, RESULT_FILE), result)
        write_results(config.output_path, _record(config.model_path, sets, started_at), task_results(config, sets))
    return result


def _record(model_path: str, sets: Mapping[str, Mapping[str, Any]], started_at: float) -> EvaluationRecord:
    from tradewind.recipes.lm import levanter_parts

    return EvaluationRecord(
        "log_probs",
        Status.SUCCEEDED,
        Model(model_path, basename(model_path)),
        Serving("in_process", hardware=levanter_parts.device_kind()),
        started_at,
        time.time(),
        prompt_tokens=sum(numbers["tokens"] for numbers in sets.values()),
    )


def task_results(config: LogProbsConfig, sets: Mapping[str, Mapping[str, Any]]) -> list[TaskResult]:
    """Return each set as a task, with the scores of the set.

    Its documents are the texts, each with scores; one of which no byte is predicted, such as an empty file, is none.
    """
    results = []
    for name, numbers in sets.items():
        with open_file(join(config.output_path, SETS, f"{name}.parquet")) as file:
            samples = tuple(_sample(row) for row in read_rows(file) if row["bytes"] != 0)
        metrics = {metric: numbers[metric] for metric in ("bits_per_byte", "loss") if numbers[metric] is not None}
        scored = [*metrics, *(f"{metric}{BY_DOCUMENT}" for metric in metrics)]
        better = dict.fromkeys(scored, False)
        version = f"sequences of {numbers['seq_len']}"
        results.append(TaskResult(name, name, version, None, better, metrics, len(samples), samples))
    return results


def _sample(row: Mapping[str, Any]) -> Sample:
    scores = {f"loss{BY_DOCUMENT}": row["nats"] / row["tokens"]}
    if row["bytes"]:
        scores[f"bits_per_byte{BY_DOCUMENT}"] = row["nats"] / math.log(2) / row["bytes"]
    return Sample(row["document"], row["text"], "", "", scores)


measure_log_probs.preflight = check_inputs  # type: ignore[attr-defined]  # before a slice is reserved


def evaluate_lm_log_probs(config: Any) -> dict[str, Any]:
    """Measure what Marin's ``EvalLmConfig`` names; returns and raises what ``measure_log_probs`` does.

    Entropies are not measured, and nothing is sent to W&B.
    """
    return measure_log_probs(marins_config(config))


def _marins_preflight(config: Any, devices: int, num_slices: int = 1) -> None:
    check_inputs(marins_config(config), devices, num_slices)


evaluate_lm_log_probs.preflight = _marins_preflight  # type: ignore[attr-defined]


def marins_config(config: Any) -> LogProbsConfig:
    """Return the config of Marin's ``EvalLmConfig``, which on the cluster has today's data config of Levanter's."""
    return LogProbsConfig(
        marins_model(config.checkpoint_path, config.checkpoint_is_hf),
        marins_sets(config.datasets),
        config.output_path,
        tokenizer_path=config.datasets.tokenizer,
        weights=EXPORT if config.checkpoint_is_hf else CHECKPOINT,
        max_sequences=config.max_samples_per_dataset,
        per_device_batch_size=config.per_device_batch_size,
        model=None if config.checkpoint_is_hf else config.model,
    )


def _measure_missing(config: LogProbsConfig, names: list[str]) -> dict[str, Any]:
    from tradewind.evaluation.perplexity import measure
    from tradewind.evaluation.scored_model import loaded
    from tradewind.evaluation.token_sets import read_set

    found = {}
    with loaded(config.source(), config.per_device_batch_size) as model:
        seq_len = length_of(model, config.seq_len)
        for name in names:
            most = None if config.max_sequences is None else config.max_sequences * seq_len
            texts = read_set(name, config.sets[name], config.text_key, model.tokenizer, most)
            check_vocabulary(name, texts.tokens, model)
            documents, levanters = measure(model, texts, seq_len)
            check_finite(name, documents.nats)
            found[name] = documents.numbers() | {"seq_len": seq_len, "levanter": levanters}
            if is_first_host():
                _write_set(join(config.output_path, SETS, name), documents, found[name])
                print(line_of(name, found[name]), flush=True)
    return found


def _kept(output_path: str, name: str) -> dict[str, Any] | None:
    """Return the numbers of a set that an earlier attempt measured; None if it did not, or was cut."""
    kinds = {"documents": COUNT, "tokens": COUNT, "loss": NUMBER}
    try:
        return read_object(join(output_path, SETS, f"{name}.json"), kinds, kinds)
    except ValueError:
        return None


def _write_set(path: str, documents: Documents, numbers: Mapping[str, Any]) -> None:
    remove_unfinished(parent(path))
    write_columns(f"{path}.parquet", documents.columns())
    write_json(f"{path}.json", numbers)


def read_rows(file: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of texts."""
    from pyarrow import parquet

    for batch in parquet.ParquetFile(file).iter_batches():
        yield from batch.to_pylist()


def line_of(name: str, numbers: Mapping[str, Any]) -> str:
    """Return the log line of a set."""
    bits = numbers["bits_per_byte"]
    end = "unknown bits per byte" if bits is None else f"{bits:.4f} bits per byte"
    return f"{truncated_repr(name)}: loss {numbers['loss']:.4f}, {end}, {numbers['tokens']:,} tokens"


def summary(sets: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of all sets in Markdown."""
    rows = [["set", "bits per byte", "95 % interval", "loss", "perplexity", "tokens", "bytes", "documents"]]
    for name, numbers in sets.items():
        interval = numbers["bits_per_byte_interval"]
        rows.append(
            [
                name,
                _digits(numbers["bits_per_byte"]),
                "" if interval is None else " to ".join(map(_digits, interval)),
                _digits(numbers["loss"]),
                _digits(numbers["perplexity"]),
                *("" if numbers[key] is None else f"{numbers[key]:,}" for key in ("tokens", "bytes", "documents")),
            ]
        )
    return f"{as_markdown(rows)}\n\nEach set has its own kind of texts, so there is no mean over sets.\n"


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
