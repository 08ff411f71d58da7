"""Check token caches against their ledgers before a slice is reserved.

Levanter reads a missing chunk as zeros: a training on a cache that has lost one would end well, on wrong tokens. The
check reads the ledger, one listing, and of each array its metadata, its first and last offset, and its last value,
since a writer that was killed cuts the last chunk.

A cache has a ledger and, per field, the arrays ``offsets`` (number of rows, then the end of each row) and ``data``, in
the format zarr 3 with chunks ``c/0``, ``c/1``, …; see ``levanter.store``. A sharded cache has a folder per shard with
such arrays; of those only the files are checked, since thousands of shards would need thousands of requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.datasets.files import join
from tradewind.recipes.lm.stored_models import first_line_of
from tradewind.records.parsing import is_count, is_relative, is_text
from tradewind.storage import file_system_at
from tradewind.storage.bounded_read import SMALL
from tradewind.text import single_line

LEDGER: Final = "shard_ledger.json"
"""``levanter.store.cache.LEDGER_FILE_NAME``, known here without importing Levanter."""
TOKENS: Final = "input_ids"
_METADATA: Final = "zarr.json"
_WEIGHTS: Final = "loss_weights"
_MAX_FIELDS: Final = 64
_MAX_REASON: Final = 1000
_MAX_LEDGER: Final = 16 << 20
"""Bytes of a ledger: of some 100,000 shards. Parsed, a hostile one takes twenty times as many."""


def check_cache(path: str, min_tokens: int = 0, tokens: str = TOKENS, may_be_empty: bool = False) -> None:
    """Check a finished cache.

    Args:
        path: Folder of its ledger.
        min_tokens: Tokens of one sequence, if the training cuts its sequences from all tokens in a row.
        tokens: Field of the tokens.
        may_be_empty: Whether it may be without rows.

    Raises:
        ValueError: It is missing, unfinished, damaged, empty or shorter than one sequence.
    """
    ledger = read_ledger(path)
    if ledger is None or not ledger.is_finished:
        raise ValueError(f"there is no finished token cache at {path}: run the step that makes it.")
    if not ledger.rows:
        if may_be_empty:
            return
        raise ValueError(f"the token cache at {path} is empty: give it documents, or leave it out.")
    if (count := _check_files(path, ledger, tokens)) < min_tokens:
        raise ValueError(
            f"the token cache at {path} has {count:,} tokens, less than one sequence of {min_tokens:,}: give it more "
            "documents, give shorter sequences, or leave it out."
        )


def _damaged(path: str, why: str) -> ValueError:
    why = single_line(why, _MAX_REASON)
    return ValueError(
        f"the token cache at {path} is damaged, because {why}: restore it, or run the step that makes it again."
    )


@dataclass(frozen=True)
class CacheLedger:
    """What the ledger of a cache says; fields without a recorded count are absent from ``values``."""

    is_finished: bool
    rows: int
    values: Mapping[str, int] = field(default_factory=dict)
    """Field → number of values of all its rows, for example of tokens."""
    shards: Mapping[str, CacheLedger] = field(default_factory=dict)
    """Folder → counts of each shard of a sharded cache."""


def read_ledger(path: str) -> CacheLedger | None:
    """Return the ledger of the cache at ``path``, None without one.

    Raises:
        ValueError: It is no ledger, for example because it is cut off.
    """
    fs, name = file_system_at(join(path, LEDGER))
    try:
        about = fs.info(name)
    except FileNotFoundError:
        return None
    if about["type"] != "file" or about["size"] > _MAX_LEDGER:
        raise _damaged(path, f"its {LEDGER} is no file of at most {_MAX_LEDGER:,} bytes")
    try:
        return _ledger(json.loads(fs.cat_file(name)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _damaged(path, f"its {LEDGER} is invalid") from None


def _ledger(given: Any) -> CacheLedger:
    values, shards = dict(given.get("field_counts") or {}), {}
    if given.get("layout") == "sharded":
        by_shard = given["field_counts_by_shard"]
        shards = {
            str(shard): CacheLedger(True, given["shard_rows"][shard], dict(by_shard.get(shard) or {}))
            for shard in given["finished_shards"]
        }
        if not shards and given["total_num_rows"]:
            raise ValueError("rows are in shards")
    ledger = CacheLedger(given["is_finished"] is True, given["total_num_rows"], values, shards)
    for each in (ledger, *shards.values()):
        if not all(map(is_count, (each.rows, *each.values.values()))):
            raise ValueError("counts are whole numbers")
        if not all(is_text(name) and is_relative(name) for name in each.values) or len(each.values) > _MAX_FIELDS:
            raise ValueError("fields are paths below the cache")
    if not all(is_text(name) and is_relative(name) for name in shards):
        raise ValueError("shards are paths below the cache")
    return ledger


def _check_files(path: str, ledger: CacheLedger, token_field: str) -> int:
    """Check the files of a finished cache; return its number of tokens, 0 if it has no such field.

    Raises:
        ValueError: A file is missing or empty, or the offsets differ from the ledger.
    """
    fs, root = file_system_at(path)
    fs.invalidate_cache()
    start = len(root.rstrip("/")) + 1
    # Beside the fields of a materialized cache, Levanter may have left the shards that it was made of.
    folders = [root] if ledger.shards or not ledger.values else [f"{root}/{name}" for name in ledger.values]
    found = {name: about["size"] for folder in folders for name, about in fs.find(folder, detail=True).items()}
    files = _Files(path, {name[start:]: size for name, size in found.items()})
    parts = ledger.shards or {"": ledger}
    if sum(each.rows for each in parts.values()) != ledger.rows:
        raise _damaged(path, f"its {LEDGER} has {ledger.rows:,} rows, and its shards have another number")
    for name, count in ledger.values.items():
        if sum(each.values.get(name, 0) for each in parts.values()) != count:
            raise _damaged(path, f"its {LEDGER} has {count:,} values of {name!r}, and its shards have another number")
    tokens = 0
    for folder, counts in parts.items():
        for name in files.fields(folder, counts):
            array = f"{folder}/{name}" if folder else name
            files.require(f"{array}/offsets", counts.rows + 1)
            files.require(f"{array}/data", 0)
            values = counts.values.get(name, 0) if folder else _checked_offsets(path, array, counts)
            # Chunks of zeros alone, as masks may have, are not stored. Tokens have none, and weights not only such.
            if name == token_field or name.endswith(TOKENS):
                files.require(f"{array}/data", values)
                if not folder and values:
                    _check_last_value(path, array, values)
            elif name.endswith(_WEIGHTS) and values:
                files.require_any_chunk(f"{array}/data")
            tokens += values if name == token_field else 0
    return tokens


@dataclass(frozen=True)
class _Files:
    """Sizes of the files of a cache by their paths below it, and the chunk sizes that were read."""

    path: str
    sizes: Mapping[str, int]
    chunk_sizes: dict[str, int] = field(default_factory=dict)

    def fields(self, folder: str, counts: CacheLedger) -> list[str]:
        """List the fields that the ledger counts, or else those that have files; none of a cache without rows."""
        if counts.values or not counts.rows:
            return [*counts.values] if counts.rows else []
        start, end = f"{folder}/" if folder else "", f"/offsets/{_METADATA}"
        found = [each[len(start) : -len(end)] for each in self.sizes if each.startswith(start) and each.endswith(end)]
        own = [name for name in found if f"{start}{name.partition('/')[0]}/{LEDGER}" not in self.sizes]  # of no shard
        return own if any(name.endswith(TOKENS) for name in own) else [*own, TOKENS]

    def require(self, array: str, count: int) -> None:
        """Raise ``ValueError`` if the metadata, or a chunk of the first ``count`` elements, is missing or empty."""
        self._require_file(f"{array}/{_METADATA}")
        kind = array.rpartition("/")[2]
        if kind not in self.chunk_sizes:  # alike in all shards, and reading each would take a request
            self.chunk_sizes[kind] = self._chunk_size(f"{array}/{_METADATA}")
        for index in range(-(-count // self.chunk_sizes[kind])):
            self._require_file(f"{array}/c/{index}")

    def require_any_chunk(self, array: str) -> None:
        """Raise ``ValueError`` if no chunk is stored."""
        if not any(name.startswith(f"{array}/c/") and size for name, size in self.sizes.items()):
            raise _damaged(self.path, f"{array}/c/0 is missing")

    def _require_file(self, name: str) -> None:
        if not self.sizes.get(name):
            raise _damaged(self.path, f"{name} is {'empty' if name in self.sizes else 'missing'}")

    def _chunk_size(self, metadata: str) -> int:
        fs, name = file_system_at(join(self.path, metadata))
        try:
            if self.sizes[metadata] > SMALL:
                raise ValueError("metadata is small")
            (size, *_) = json.loads(fs.cat_file(name))["chunk_grid"]["configuration"]["chunk_shape"]
            if not is_count(size) or not size:
                raise ValueError("a chunk has elements")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _damaged(self.path, f"{metadata} is invalid") from None
        return int(size)


def _check_last_value(path: str, array: str, values: int) -> None:
    try:
        _array(path, array).data[values - 1 : values].read().result()
    except (ValueError, OSError) as error:
        raise _damaged(path, f"{array}/data cannot be read ({first_line_of(error)})") from error


def _checked_offsets(path: str, array: str, counts: CacheLedger) -> int:
    """Return the number of values by the offsets, which must agree with the ledger."""
    try:
        store = _array(path, array)
        rows, values = int(store.num_rows), int(store.data_size)
    except (ValueError, OSError, IndexError) as error:
        raise _damaged(path, f"{array} cannot be read ({first_line_of(error)})") from error
    for unit, found, listed in (("rows", rows, counts.rows), ("values", values, counts.values.get(array, values))):
        if found != listed:
            raise _damaged(path, f"{array} has {found:,} {unit}, and {LEDGER} has {listed:,}")
    return values


def _array(path: str, array: str) -> Any:
    from levanter.store.jagged_array import JaggedArrayStore

    return JaggedArrayStore.open(join(path, array), mode="r", dtype="int32").reload()  # not from a cache
