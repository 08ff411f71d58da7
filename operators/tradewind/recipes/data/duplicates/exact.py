"""Find documents, or paragraphs of documents, whose text occurs before: attributes for ``consolidate``.

Of equal texts the one in the document with the smallest id is no duplicate. ``groups/`` beside the attributes has all
that was found: for each text its number, some ids and its beginning, and for each duplicate its document and place.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from tradewind.datasets import Dataset, counters, dataset_step, flow_backend
from tradewind.datasets.execution import Results
from tradewind.datasets.files import join, write_json
from tradewind.recipes.data.document_sets import (
    Counted,
    attribute_schema,
    dataset_of,
    part_pattern,
    path_input,
    read_set,
    set_files,
)
from tradewind.recipes.model_spec import versioned_value
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, this_output_path
from tradewind.steps.fields import PATH, check_fields, one_of
from tradewind.steps.needs import needs

DUPLICATE_DOCUMENT: Final = "duplicate_document"
"""Attribute of a document whose text occurs before: True."""
DUPLICATE_PARAGRAPHS: Final = "duplicate_paragraphs"
"""Attribute of a document: the spans of paragraphs that occur before."""
_ATTRIBUTES: Final = {"document": DUPLICATE_DOCUMENT, "paragraph": DUPLICATE_PARAGRAPHS}
_MAX_LARGEST: Final = 20
_MAX_IDS: Final = 5
_MAX_EXCERPT: Final = 200


@dataclass(frozen=True)
class DeduplicateConfig:
    """What ``deduplicate_exact`` compares."""

    documents: str
    """A set of documents."""
    output_path: str
    """Gets the attributes, ``groups/`` and ``stats.json``."""
    by: str = "document"
    """``document`` or ``paragraph``."""

    def __post_init__(self) -> None:
        check_fields(self, documents=PATH, output_path=PATH, by=one_of(tuple(_ATTRIBUTES)))


@naming_step
def deduplicate_exact(name: str, documents: Any, *, by: str = "document", **options: Any) -> ExecutorStep:
    """Return a step that finds equal texts in a set of documents, without the blanks around them.

    Args:
        name: Name of the step.
        documents: A set of documents: a step or a folder.
        by: ``document``, for the attribute ``duplicate_document``; or ``paragraph``, for ``duplicate_paragraphs``, the
            spans of lines that occur before in the same or in another document.
        options: Of ``dataset_step``.

    Raises:
        ValueError: An argument does not take its value.
    """
    config = DeduplicateConfig(path_input("documents", documents), this_output_path(), versioned_value(by))
    about = {"description": f"Attributes of exact duplicates by {by}."}
    return dataset_step(name, find_duplicates, config, finish=write_stats, **(about | options))


@needs("pyarrow", "zstandard", extra="data")
def find_duplicates(config: DeduplicateConfig) -> Dataset[Any]:
    """Return the pipeline of ``deduplicate_exact``."""
    files = set_files(config.documents, "documents")
    documents = read_set(files, ("id", "text")).map_shard(Counted("documents"))
    pieces = documents.flat_map(_whole)
    if config.by == "paragraph":
        pieces = documents.flat_map(_paragraphs).map_shard(Counted("paragraphs"))
    groups = pieces.group_by(itemgetter("digest"), sort_by=_place, reducer=_group, num_output_shards=len(files))
    found = groups.write_parquet(part_pattern(_groups(config), ".parquet"), _group_schema()).load_parquet()
    marks = found.filter(_is_mark).group_by(
        itemgetter("id"),
        sort_by=itemgetter("start"),
        reducer=_flag if config.by == "document" else _spans,
        num_output_shards=len(files),
    )
    return marks.write_parquet(part_pattern(config.output_path, ".parquet"), _schema(config.by))


def write_stats(config: DeduplicateConfig, results: Results) -> None:
    """Write how many duplicates there are, and the largest groups."""
    files = set_files(_groups(config), "groups")
    largest = dataset_of(files).load_parquet().filter(_is_group).reduce(_largest, _largest_of_all)
    names = dict.fromkeys(["documents", f"{config.by}s", "groups", "duplicates"])
    counts = {name: results.counters.get(name, 0) for name in names}
    about = {"by": config.by, "counts": counts, "largest": flow_backend().execute(largest)[0]}
    write_json(join(config.output_path, "stats.json"), about)


def _groups(config: DeduplicateConfig) -> str:
    return join(config.output_path, "groups")


def _whole(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [_piece(document["id"], 0, len(document["text"]), document["text"])]


def _paragraphs(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each line that is not blank; its span includes the line breaks and blank lines after it."""
    text, start = document["text"], 0
    held: tuple[int, str] | None = None
    for line in text.split("\n"):
        if line.strip():
            if held is not None:
                yield _piece(document["id"], held[0], start, held[1])
            held = (start, line)
        start += len(line) + 1
    if held is not None:
        yield _piece(document["id"], held[0], len(text), held[1])


def _piece(own: str, start: int, end: int, text: str) -> dict[str, Any]:
    text = text.strip()
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return {"digest": digest, "id": own, "start": start, "end": end, "text": text[:_MAX_EXCERPT]}


def _place(piece: dict[str, Any]) -> tuple[str, int]:
    return piece["id"], piece["start"]


def _group(_: bytes, pieces: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each piece but the first, and at last the group; one piece alone is none."""
    first = next(pieces)
    ids = [first["id"]]
    count = 1
    for count, piece in enumerate(pieces, 2):  # noqa: B007
        if len(ids) < _MAX_IDS and piece["id"] != ids[-1]:
            ids.append(piece["id"])
        yield {name: piece[name] for name in ("id", "start", "end")}
    if count > 1:
        counters.increment("groups")
        counters.increment("duplicates", count - 1)
        yield {"id": first["id"], "count": count, "ids": ids, "text": first["text"]}


def _group_schema() -> Any:
    import pyarrow as pa

    numbers = [(name, pa.int64()) for name in ("start", "end", "count")]
    return pa.schema([("id", pa.string()), *numbers, ("ids", pa.list_(pa.string())), ("text", pa.string())])


def _is_group(row: dict[str, Any]) -> bool:
    return row["count"] is not None


def _is_mark(row: dict[str, Any]) -> bool:
    return row["count"] is None


def _flag(own: str, marks: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return {"id": own, "attributes": {DUPLICATE_DOCUMENT: True}}


def _spans(own: str, marks: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return {"id": own, "attributes": {DUPLICATE_PARAGRAPHS: [[mark["start"], mark["end"]] for mark in marks]}}


def _schema(by: str) -> Any:
    import pyarrow as pa

    return attribute_schema(**{_ATTRIBUTES[by]: pa.bool_() if by == "document" else pa.list_(pa.list_(pa.int64()))})


def _largest(groups: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    found = heapq.nsmallest(_MAX_LARGEST, groups, key=lambda group: (-group["count"], group["text"], group["id"]))
    return [{name: group[name] for name in ("id", "count", "ids", "text")} for group in found]


def _largest_of_all(shards: Iterator[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return _largest(itertools.chain.from_iterable(shards))
