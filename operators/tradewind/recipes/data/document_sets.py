"""The form of a set of documents, which the recipes for data share: who reads it and who makes it.

A set is ``part-NNNNN-of-MMMMM.parquet`` directly below one folder. A row has ``id``, a hash of its text when it came
in, ``text``, and of its origin ``source_id``, ``source`` and ``metadata``, a JSON text. The hash of an id chooses the
shard, and a shard is sorted by id: so sets with as many shards are partitioned alike, and join shard by shard.

Attributes of documents have the same shards, with rows ``id`` and ``attributes``; documents without any may be left
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from tradewind.datasets import Dataset, ShardInfo, counters
from tradewind.datasets.dataset import FilesSource
from tradewind.datasets.execution import list_source
from tradewind.datasets.files import basename, join
from tradewind.datasets.rows import RowError
from tradewind.datasets.shuffle import bucket_of
from tradewind.datasets.token_inputs import InputFile
from tradewind.recipes.model_spec import PLACEHOLDERS, versioned_value
from tradewind.steps import ExecutorStep, InputName
from tradewind.steps.fields import PATH
from tradewind.steps.run_values import RunPath, RunValue
from tradewind.text import truncated_repr

COLUMNS: Final = ("id", "text", "source_id", "source", "metadata")
PART: Final = "part-{shard:05d}-of-{total:05d}"


def path_input(field: str, value: Any) -> Any:
    """Return a reference to an input, which counts in the version; refuse what is none."""
    PATH.check(field, value)
    if isinstance(value, ExecutorStep):
        return value.as_input_name()
    if isinstance(value, RunValue):
        return RunPath(value)
    if isinstance(value, PLACEHOLDERS):
        return versioned_value(value)
    return InputName.hardcoded(str(value)) if isinstance(value, (str, PurePath)) else value


def part_pattern(folder: str, ending: str) -> str:
    """Return the pattern of the files of a set."""
    return join(folder.replace("{", "{{").replace("}", "}}"), f"{PART}{ending}")


def document_schema() -> Any:
    """Return the columns of documents."""
    import pyarrow as pa

    return pa.schema([pa.field(name, pa.string(), nullable=name not in ("id", "text")) for name in COLUMNS])


def attribute_schema(**attributes: Any) -> Any:
    """Return the columns of a set with these attributes, given as name and type of Arrow."""
    import pyarrow as pa

    return pa.schema([pa.field("id", pa.string(), nullable=False), ("attributes", pa.struct(list(attributes.items())))])


def set_files(folder: str, field: str) -> list[InputFile]:
    """List the files of a set.

    Raises:
        ValueError: With ``field``: the folder holds no set, or not all of its shards.
    """
    from glob import escape

    files = list_source(FilesSource(join(escape(folder), "part-*.parquet"), empty_glob_ok=True))
    names = [basename(file.path) for file in files]
    whole = [f"{PART.format(shard=shard, total=len(names))}.parquet" for shard in range(len(names))]
    if not names:
        raise ValueError(
            f"{field}: {folder} has no {PART.format(shard=0, total=1)}.parquet: give a set that normalize(...) made, "
            "or attributes of one."
        )
    if wrong := sorted(set(names) ^ set(whole)):
        raise ValueError(f"{field}: {folder} is not one whole set of {len(names):,} shards: see {wrong[0]}.")
    return files


def dataset_of(files: Sequence[InputFile]) -> Dataset[str]:
    """Return the paths of files, one shard each."""
    return Dataset.from_list([file.path for file in files])


def read_set(files: Sequence[InputFile], columns: Sequence[str]) -> Dataset[dict[str, Any]]:
    """Return the rows of a set, in which each is checked to be at its place."""
    return dataset_of(files).load_parquet(columns).map_shard(checked_rows)


def checked_rows(rows: Iterator[dict[str, Any]], shard: ShardInfo) -> Iterator[dict[str, Any]]:
    """Yield the rows of a shard of a set; refuse one that is not at its place."""
    before = ""
    for row in rows:
        own = row["id"]
        if not isinstance(own, str) or not own:
            raise RowError(f"The id is {truncated_repr(own)}: ids are texts.")
        if bucket_of(own, shard.total_shards) != shard.shard_idx:
            raise RowError(f"The id {truncated_repr(own)} belongs to another shard: make the set with normalize(...).")
        if own == before:
            raise RowError(f"The id {truncated_repr(own)} occurs twice: make the set with normalize(...).")
        if own < before:
            raise RowError(f"The id {truncated_repr(own)} follows a larger one: make the set with normalize(...).")
        if not isinstance(row.get("text", ""), str):
            raise RowError(f"The text of {truncated_repr(own)} is {truncated_repr(row['text'])}: texts are strings.")
        before = own
        yield row


def documents_of(files: Sequence[InputFile]) -> Dataset[dict[str, Any]]:
    """Return the documents of a set."""
    return read_set(files, COLUMNS)


@dataclass(frozen=True)
class Counted:
    """Function of ``map_shard`` that counts the rows under a name."""

    name: str

    def __call__(self, rows: Iterator[Any], _: ShardInfo) -> Iterator[Any]:
        count = 0
        for row in rows:
            count += 1
            yield row
        counters.increment(self.name, count)


def batches_of_texts(rows: Iterator[dict[str, Any]], max_rows: int, max_chars: int) -> Iterator[list[dict[str, Any]]]:
    """Yield rows in lists of at most so many, each of which ends with the row that makes its texts so long."""
    batch: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row["text"])
        if len(batch) == max_rows or size >= max_chars:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
