"""Clean and split a document collection: the same input gives the same bytes on any cluster.

``clean_and_shard`` drops lines that are not ``{"id", "text"}`` with a UTF-8 form, texts shorter than ``min_chars``
after newlines are normalised, and duplicate texts (the smallest id stays). The hash of a document's id alone decides
its split and its train shard.

Ray Data runs one task per input file, then shuffles by the text's hash, then by shard.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tradewind.datasets.documents import SUFFIX, Document, document_files, raw_lines, write_document_file
from tradewind.datasets.files import join, write_json
from tradewind.datasets.ray_data import quiet_ray_data
from tradewind.steps.fields import PATH, check_fields, integer, number

if TYPE_CHECKING:
    import pandas

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


def clean_and_shard(config: CleanAndShardConfig) -> dict[str, Any]:
    """Write the cleaned splits; return the statistics that are also in ``stats.json``.

    Raises:
        ValueError: The input has no documents, or a split would be empty.
    """
    files = document_files(config.input_path)
    _check_input(config, files)
    with quiet_ray_data():
        import ray

        source = ray.data.from_items([{"path": path} for path in files], override_num_blocks=len(files))
        buckets = min(MAX_BUCKETS, max(MIN_BUCKETS, len(files)))
        rows = source.flat_map(partial(_rows_of_file, min_chars=config.min_chars, buckets=buckets))
        marked = rows.groupby("bucket", num_partitions=buckets).map_groups(_mark_duplicates, batch_format="pandas")
        placed = marked.map_batches(partial(_place, config=config), batch_format="pandas").materialize()
        tally = _total(placed.map_batches(_count, batch_format="pandas").take_all())
        _check_splits(config, {split: tally[split]["documents"] for split in SPLITS})
        shards = placed.filter(expr=f"outcome == '{KEPT}'").groupby("shard", num_partitions=config.train_shards + 1)
        shards.map_groups(partial(_write_shard, config.output_path), batch_format="pandas").materialize()
    stats = _stats(tally)
    write_json(join(config.output_path, "stats.json"), stats)
    return stats


clean_and_shard.needs = ("pandas", "pyarrow")  # type: ignore[attr-defined]  # checked before its step starts


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
            row = _row_of_line(line, config.min_chars, 1)
            if row["outcome"] == KEPT:
                documents[split_of(row["id"], config.validation_fraction)] += 1
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


def _rows_of_file(row: dict[str, Any], *, min_chars: int, buckets: int) -> list[dict[str, Any]]:
    return [_row_of_line(line, min_chars, buckets) for line in raw_lines(row["path"])]


def _row_of_line(line: bytes, min_chars: int, buckets: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
        document_id, text = value["id"], normalise(value["text"])
        digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
        document_id.encode("utf-8")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # a lone surrogate is a ValueError
        return {"id": "", "text": "", "digest": "", "bucket": 0, "outcome": UNDECODABLE}
    if len(text.strip()) < min_chars:
        return {"id": document_id, "text": "", "digest": "", "bucket": 0, "outcome": TOO_SHORT}
    bucket = int(digest[:8], 16) % buckets
    return {"id": document_id, "text": text, "digest": digest, "bucket": bucket, "outcome": KEPT}


def _mark_duplicates(group: pandas.DataFrame) -> pandas.DataFrame:
    """Mark all kept rows with one text as duplicates, except the one with the smallest id."""
    ordered = group.sort_values(["digest", "id"], ignore_index=True)
    repeated = (ordered["outcome"] == KEPT) & ordered.duplicated(["outcome", "digest"])
    ordered.loc[repeated, "outcome"] = DUPLICATE
    ordered.loc[repeated, "text"] = ""
    return ordered


def _place(batch: pandas.DataFrame, config: CleanAndShardConfig) -> pandas.DataFrame:
    """Add each row's shard, and drop the columns that no later stage reads."""
    return batch.assign(shard=[shard_of(name, config) for name in batch["id"]])[["id", "text", "shard", "outcome"]]


def _count(batch: pandas.DataFrame) -> pandas.DataFrame:
    """Return one row per shard and outcome: documents and characters of this batch."""
    counted = batch.assign(documents=1, characters=batch["text"].str.len())
    return counted.groupby(["shard", "outcome"], as_index=False)[["documents", "characters"]].sum()


def _write_shard(output_path: str, group: pandas.DataFrame) -> pandas.DataFrame:
    ordered = group.sort_values(["id", "text"], ignore_index=True)
    documents = (Document(*pair) for pair in zip(ordered["id"], ordered["text"], strict=True))
    write_document_file(join(output_path, ordered["shard"][0]), documents)
    return ordered[["shard"]].head(1)


def _total(counts: list[dict[str, Any]]) -> dict[str, Counter[str]]:
    """Sum the documents and characters of each split, and the dropped documents by reason under ``dropped``."""
    tally: dict[str, Counter[str]] = {name: Counter() for name in (*SPLITS, "dropped")}
    for row in counts:
        if row["outcome"] == KEPT:
            split = str(row["shard"]).split("/")[0]
            tally[split].update(documents=int(row["documents"]), characters=int(row["characters"]))
        else:
            tally["dropped"].update({str(row["outcome"]): int(row["documents"])})
    return tally


def _stats(tally: dict[str, Counter[str]]) -> dict[str, Any]:
    dropped = {reason: tally["dropped"][reason] for reason in (TOO_SHORT, UNDECODABLE, DUPLICATE)}
    splits: dict[str, Any] = {split: dict(tally[split]) for split in SPLITS}
    kept = sum(split["documents"] for split in splits.values())
    characters = sum(split["characters"] for split in splits.values())
    return {**splits, "kept": kept, "characters": characters, "dropped": dropped}
