"""Clean and split a document collection: the same input gives the same bytes on any cluster.

``clean_and_shard`` drops lines that are not ``{"id", "text"}`` with a UTF-8 form, texts shorter than ``min_chars``
after newlines are normalised, and duplicate texts (the smallest id stays). The hash of a document's id alone decides
its split and its train shard.

A pipeline reads one file in each task, then shuffles by the text's hash, then by shard.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tradewind.datasets import counters
from tradewind.datasets.backends import flow_backend
from tradewind.datasets.dataset import Dataset
from tradewind.datasets.documents import SUFFIX, Document, document_files, raw_lines, write_document_file
from tradewind.datasets.files import join, write_json
from tradewind.steps.fields import PATH, check_fields, integer, number
from tradewind.steps.needs import needs

SPLITS = ("train", "validation")
KEPT, DUPLICATE, TOO_SHORT, UNDECODABLE = "kept", "duplicate", "too_short", "undecodable"
MIN_BUCKETS, MAX_BUCKETS = 2, 256
"""Groups of the shuffle by text hash, one per file: a group must fit into one task's memory."""


@dataclass(frozen=True)
class CleanAndShardConfig:
    """What ``clean_and_shard`` reads, and how it splits."""

    input_path: str
    """A document collection (see ``tradewind.datasets.documents``)."""
    output_path: str
    """Gets ``train/*.jsonl.gz``, ``validation/*.jsonl.gz`` and ``stats.json``."""
    train_shards: int = 2
    """Number of files under ``train/``; with very few documents some may be missing."""
    min_chars: int = 64
    """Shorter texts are dropped. In characters after normalising newlines, at least 1."""
    validation_fraction: float = 0.03
    """Share of documents that become validation, between 0 and 1, both excluded."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            input_path=PATH,
            output_path=PATH,
            train_shards=integer(1),
            min_chars=integer(1),
            validation_fraction=number(above=0, below=1),
        )


@needs("zstandard", extra="data")
def clean_and_shard(config: CleanAndShardConfig) -> dict[str, Any]:
    """Write the cleaned splits; return the statistics that are also in ``stats.json``.

    Raises:
        ValueError: The input has no documents, or a split would be empty.
    """
    files = document_files(config.input_path)
    _check_input(config, files)
    texts = Dataset.from_list(files).flat_map(partial(_rows_of_file, min_chars=config.min_chars))
    buckets = min(MAX_BUCKETS, max(MIN_BUCKETS, len(files)))
    unique = texts.group_by(_digest, reducer=_first, sort_by=_id, num_output_shards=buckets)
    shards = unique.group_by(
        partial(_shard_of_row, config=config),
        reducer=partial(_write_shard, config.output_path),
        sort_by=_id_and_text,
        num_output_shards=config.train_shards + 1,
    )
    results = flow_backend().execute(shards)
    tally = _total(results)
    _check_splits(config, {split: tally[split]["documents"] for split in SPLITS})
    stats = _stats(tally, results.counters)
    write_json(join(config.output_path, "stats.json"), stats)
    return stats


def normalise(text: str) -> str:
    """Return the text with ``\\n`` for every kind of line end, and exactly one at the end."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip("\n") + "\n"


def split_of(document_id: str, validation_fraction: float) -> str:
    """Return ``"train"`` or ``"validation"``, by the hash of the id alone."""
    return "validation" if _unit_interval("split:" + document_id) < validation_fraction else "train"


def shard_of(document_id: str, config: CleanAndShardConfig) -> str:
    """Return the path of the document's shard in the output, such as ``train/shard-00001.jsonl.gz``."""
    split = split_of(document_id, config.validation_fraction)
    shards = config.train_shards if split == "train" else 1
    return f"{split}/shard-{int(_unit_interval('shard:' + document_id) * shards):05d}{SUFFIX}"


def _unit_interval(key: str) -> float:
    """Return a number in [0, 1) that depends on ``key`` alone."""
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def _check_input(config: CleanAndShardConfig, files: list[str]) -> None:
    """Refuse an input that leaves a split empty, before Ray starts.

    Reads until both splits have a document: usually a few dozen. Duplicates count, so a split can still be empty after
    the shuffle.
    """
    documents: Counter[str] = Counter()
    for path in files:
        for line in raw_lines(path):
            document, _ = _document(line, config.min_chars)
            if document is not None:
                documents[split_of(document.id, config.validation_fraction)] += 1
            if len(documents) == len(SPLITS):
                return
    _check_splits(config, documents)


def _check_splits(config: CleanAndShardConfig, documents: Mapping[str, int]) -> None:
    for split in SPLITS:
        if not documents[split]:
            raise ValueError(
                f"The {split} split of input_path {config.input_path} would be empty: of {sum(documents.values())} kept"
                f" documents none falls into it with validation_fraction={config.validation_fraction}."
            )


def _rows_of_file(path: str, *, min_chars: int) -> Iterator[Document]:
    for line in raw_lines(path):
        document, outcome = _document(line, min_chars)
        if document is None:
            counters.increment(outcome)
        else:
            yield document


def _document(line: bytes, min_chars: int) -> tuple[Document | None, str]:
    """Return the document of a line, or None and why it is dropped."""
    try:
        value = json.loads(line)
        document = Document(value["id"], normalise(value["text"]))
        document.id.encode("utf-8")
        document.text.encode("utf-8")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # a lone surrogate is a ValueError
        return None, UNDECODABLE
    return (document, KEPT) if len(document.text.strip()) >= min_chars else (None, TOO_SHORT)


def _digest(document: Document) -> bytes:
    return hashlib.sha256(document.text.encode("utf-8")).digest()


def _id(document: Document) -> str:
    return document.id


def _id_and_text(document: Document) -> tuple[str, str]:
    return document.id, document.text


def _first(_: bytes, documents: Iterator[Document]) -> Document:
    """Keep the document with the smallest id of one text."""
    first = next(documents)
    counters.increment(DUPLICATE, sum(1 for _ in documents))
    return first


def _shard_of_row(document: Document, config: CleanAndShardConfig) -> str:
    return shard_of(document.id, config)


def _write_shard(output_path: str, shard: str, documents: Iterator[Document]) -> tuple[str, int, int]:
    """Write one shard; return its name and how many documents and characters it has."""
    characters = 0

    def counted() -> Iterator[Document]:
        nonlocal characters
        for document in documents:
            characters += len(document.text)
            yield document

    count = write_document_file(join(output_path, shard), counted())
    return shard, count, characters


def _total(shards: Iterable[tuple[str, int, int]]) -> dict[str, Counter[str]]:
    """Sum the documents and characters of each split."""
    tally: dict[str, Counter[str]] = {name: Counter() for name in SPLITS}
    for shard, documents, characters in shards:
        tally[shard.split("/")[0]].update(documents=documents, characters=characters)
    return tally


def _stats(tally: Mapping[str, Counter[str]], counted: Mapping[str, int]) -> dict[str, Any]:
    splits: dict[str, Any] = {split: dict(tally[split]) for split in SPLITS}
    return {
        **splits,
        "kept": sum(split["documents"] for split in splits.values()),
        "characters": sum(split["characters"] for split in splits.values()),
        "dropped": {reason: counted.get(reason, 0) for reason in (TOO_SHORT, UNDECODABLE, DUPLICATE)},
    }
