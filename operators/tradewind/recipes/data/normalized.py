"""Bring rows of any JSON lines or Parquet files into the form of a set of documents; see ``document_sets``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from tradewind.datasets import Dataset, counters, dataset_step
from tradewind.datasets.execution import Results
from tradewind.datasets.files import join, write_json
from tradewind.datasets.rows import RowError, selected
from tradewind.datasets.token_inputs import InputFile, input_files
from tradewind.recipes.data.document_sets import (
    COLUMNS,
    Counted,
    dataset_of,
    document_schema,
    part_pattern,
    path_input,
)
from tradewind.recipes.model_spec import versioned_value
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, this_output_path
from tradewind.steps.fields import PATH, SOME_TEXT, FieldRule, check_fields, integer
from tradewind.steps.needs import needs
from tradewind.text import single_line, truncated_repr


@dataclass(frozen=True)
class NormalizeConfig:
    """What ``normalize`` reads, and where in a row."""

    documents: Sequence[str]
    """Files, folders or globs of JSON lines and Parquet."""
    output_path: str
    """Gets the set, and ``provenance.json``."""
    text_field: str = "text"
    """Column of the text."""
    id_field: str | None = None
    """Column of the original id; None for ``id``, if a row has it."""
    source: str | None = None
    """Name of the collection; None for the row's own ``source``, if it has one."""
    shards: int | None = None
    """Number of shards; None for as many as there are files."""

    def __post_init__(self) -> None:
        _PATHS.check("documents", self.documents)
        check_fields(
            self,
            output_path=PATH,
            text_field=SOME_TEXT,
            id_field=SOME_TEXT.or_none(),
            source=SOME_TEXT.or_none(),
            shards=integer(1).or_none(),
        )


_PATHS = FieldRule(
    "a step, a path, or a list of these",
    lambda value: isinstance(value, (list, tuple)) and bool(value),
)


@naming_step
def normalize(
    name: str,
    documents: Any,
    *,
    text_field: str = "text",
    id_field: str | None = None,
    source: str | None = None,
    shards: int | None = None,
    **options: Any,
) -> ExecutorStep:
    """Return a step that makes a set of documents: ids from the texts, sorted, exact duplicates gone.

    A row without the column is an error; one whose text is null or blank is counted and left out. Columns besides
    those of the form become ``metadata``. Of equal texts the first remains, in the order of files and rows.

    Args:
        name: Name of the step.
        documents: A step, a path, a glob, or a list of these, of JSON lines and Parquet files.
        text_field: Column of the text.
        id_field: Column of the original id, which becomes ``source_id``; the default is ``id``, if a row has it. A
            document of another set keeps its ``source_id``.
        source: Name of the collection; the default is the row's own ``source``, if it has one.
        shards: Number of shards; the default is as many as there are files. Sets to be joined need as many.
        options: Of ``dataset_step``.

    Raises:
        ValueError: An argument does not take its value.
    """
    inputs = documents if isinstance(documents, (list, tuple)) else [documents]
    given = {"text_field": text_field, "id_field": id_field, "source": source, "shards": shards}
    config = NormalizeConfig(
        [path_input("documents", each) for each in inputs],
        this_output_path(),
        **{field: versioned_value(value) for field, value in given.items()},
    )
    about = {"description": "Documents with ids from their texts, sorted, without exact duplicates."}
    return dataset_step(name, normalized, config, finish=write_provenance, **(about | options))


@needs("pyarrow", "zstandard", extra="data")
def normalized(config: NormalizeConfig) -> Dataset[Any]:
    """Return the pipeline of ``normalize``."""
    files = _files(config)
    documents = dataset_of(files).load_file().flat_map(_Normalizing(config)).map_shard(Counted("with_text"))
    unique = documents.deduplicate(itemgetter("id"), config.shards or len(files)).map_shard(Counted("documents"))
    return unique.write_parquet(part_pattern(config.output_path, ".parquet"), document_schema())


def write_provenance(config: NormalizeConfig, results: Results) -> None:
    """Write where the documents came from, and how many were left out.

    Raises:
        ValueError: None is left.
    """
    found = {name: results.counters.get(name, 0) for name in ("with_text", "without_text", "documents")}
    rows = found["with_text"] + found["without_text"] + results.rejected
    if not found["documents"]:
        raise ValueError(f"documents: of {rows:,} rows none has a text in the column {config.text_field!r}.")
    counts = {
        "rows": rows,
        "rejected": results.rejected,
        "without_text": found["without_text"],
        "duplicates": found["with_text"] - found["documents"],
        "documents": found["documents"],
    }
    inputs = [{"path": file.path, "size_bytes": file.size_bytes} for file in _files(config)]
    fields = {name: getattr(config, name) for name in ("text_field", "id_field", "source")}
    about = {"counts": counts, "inputs": inputs, "shards": len(results), **fields}
    write_json(join(config.output_path, "provenance.json"), about)


def _files(config: NormalizeConfig) -> list[InputFile]:
    return input_files([str(path) for path in config.documents], "documents")


def content_id(text: str) -> str:
    """Return the id of a text: a hash of 128 bits, in hexadecimal."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class _Normalizing:
    """Make the document of a row, or none."""

    config: NormalizeConfig

    def __call__(self, row: Any) -> list[dict[str, Any]]:
        config = self.config
        text = selected(row, [config.text_field])[config.text_field]
        if text is not None and not isinstance(text, str):
            raise RowError(f"The column {config.text_field!r} is {truncated_repr(text)}: give the column of a text.")
        if not text or not text.strip():
            counters.increment("without_text")
            return []
        is_normalized = set(row) == set(COLUMNS) and isinstance(row["metadata"], str | None)
        id_field = config.id_field or ("source_id" if is_normalized else "id")
        source_id = selected(row, [id_field])[id_field] if config.id_field else row.get(id_field)
        source = config.source or row.get("source")
        known = {config.text_field, id_field, "source"}
        try:
            document = {
                "id": content_id(text),
                "text": text,
                "source_id": origin_text("id", source_id),
                "source": origin_text("source", source),
                "metadata": row["metadata"] if is_normalized else _metadata(row, known),
            }
            for value in document.values():
                (value or "").encode()
        except (TypeError, ValueError, RecursionError) as error:  # half of a character, too deep
            raise RowError(f"The row cannot become a document: {single_line(error).rstrip('.')}.") from error
        return [document]


def origin_text(name: str, value: Any) -> str | None:
    """Return an original id or source as a text; refuse what is neither text nor whole number."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise RowError(f"The {name} is {truncated_repr(value)}: give a text or a whole number.")


def _metadata(row: Mapping[str, Any], known: Collection[str]) -> str | None:
    """Return the other columns as a JSON text; columns beside those of Dolma's ``metadata`` join these."""
    others = {name: value for name, value in row.items() if name not in known}
    if isinstance(inner := others.get("metadata"), dict) and not set(inner) & set(others):
        others = {**{name: value for name, value in others.items() if name != "metadata"}, **inner}
    return json.dumps(others, ensure_ascii=False, sort_keys=True, default=str) if others else None
