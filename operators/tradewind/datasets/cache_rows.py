"""Write rows of token ids as one token cache of Levanter's: what ``Dataset.write_levanter_cache`` does.

Each shard leaves its tokens in the scratch folder of its stage. When all are there, one task builds the cache of them,
whose ledger appears last.
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tradewind.datasets.files import parent, state_of
from tradewind.datasets.rows import RowError, current_rows
from tradewind.datasets.token_shards import Shard, write_shard
from tradewind.text import quote_first_names, truncated_repr

_KIND: Final = "<i4"
_COLUMN: Final = re.compile(r"[A-Za-z0-9_]{1,100}")
"""A column is a folder of the cache, so its name is no path."""
LEDGER_FILE: Final = "shard_ledger.json"
"""``levanter.store.cache.LEDGER_FILE_NAME``, known here without importing Levanter."""
_METHOD: Final = "write_levanter_cache"


@dataclass(frozen=True)
class ShardOfTokens:
    """The tokens of one shard, between the stages.

    Attributes:
        number: Of the shard.
        columns: Names of its columns, sorted.
        size_bytes: Size of its file.
        tokens: The file.
    """

    number: int
    columns: tuple[str, ...]
    size_bytes: int
    tokens: Shard


def token_row(row: Any) -> dict[str, Any]:
    """Return a row of token ids as arrays.

    Raises:
        RowError: It is no object with columns of whole numbers.
    """
    if not isinstance(row, dict) or not row:
        raise RowError(f"{_METHOD} got {truncated_repr(row)}: give rows of token ids, such as {{'input_ids': [1, 2]}}.")
    for name in row:
        if not isinstance(name, str) or not _COLUMN.fullmatch(name):
            raise RowError(f"{_METHOD}: a column is called {truncated_repr(name)}: give letters, digits and '_'.")
    return {name: _tokens(name, value) for name, value in row.items()}


def _tokens(name: str, value: Any) -> Any:
    import numpy as np

    place = f"{_METHOD}: the column {truncated_repr(name)}"
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unequal lengths
        array = np.zeros((0, 0))
    if array.ndim == 1 and not array.size:
        return np.zeros(0, _KIND)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise RowError(f"{place} is {truncated_repr(value)}: give a list of whole numbers below 2³¹.")
    bounds = np.iinfo(_KIND)
    if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
        raise RowError(f"{place} has {int(array.min()):,} to {int(array.max()):,}: tokens are below 2³¹.")
    return array.astype(_KIND)


def write_tokens(batches: Iterator[list[dict[str, Any]]], shard: Any) -> Iterator[ShardOfTokens]:
    """Write the tokens of a shard to the scratch folder, and yield where they are; nothing without rows."""
    rows, first = current_rows.get(), next(batches, None)
    if rows is None or first is None:
        return
    columns = tuple(sorted(first[0]))
    checked = (_alike(batch, columns) for batch in itertools.chain([first], batches))
    fields = [(name, _KIND) for name in columns]
    written = write_shard(rows.folder, f"{shard.shard_idx:06d}-{uuid.uuid4().hex[:8]}", fields, checked)
    yield ShardOfTokens(shard.shard_idx, columns, state_of(written.path)[0], written)


def _alike(batch: list[dict[str, Any]], columns: tuple[str, ...]) -> list[dict[str, Any]]:
    for row in batch:
        _check_columns(tuple(sorted(row)), columns)
    return batch


def _check_columns(found: tuple[str, ...], columns: tuple[str, ...]) -> None:
    if found != columns:
        raise RowError(
            f"{_METHOD}: a row has the columns {quote_first_names(found)}, and an earlier one "
            f"{quote_first_names(columns)}: give all rows the same."
        )


def write_cache(file: Any, path: str, shards: Iterable[ShardOfTokens], metadata: Mapping[str, Any]) -> int:
    """Build the cache whose ledger is ``path``, and write that to ``file``; return the number of rows.

    Raises:
        RowError: There are no rows, or two shards have other columns.
        OSError: The tokens of a shard are cut.
    """
    from tradewind.datasets.cache_builder import write_arrays  # which imports this module

    ordered = sorted(shards, key=lambda shard: shard.number)
    if not ordered:
        raise RowError(f"{_METHOD} got no rows: a cache has at least one.")
    columns = ordered[0].columns
    for shard in ordered:
        _check_columns(shard.columns, columns)
        if state_of(shard.tokens.path)[0] != shard.size_bytes:
            raise OSError(f"{shard.tokens.path} is cut: remove {parent(shard.tokens.path)}, and run again.")
    files = {f"{shard.number:06d}": [shard.tokens] for shard in ordered}
    ledger = write_arrays(parent(path), files, [(name, _KIND) for name in columns], exemplar_of(columns), metadata)
    file.write(ledger.encode())
    return sum(shard.tokens.documents for shard in ordered)


def exemplar_of(columns: Iterable[str]) -> dict[str, Any]:
    """Return the exemplar with which Levanter reads such a cache."""
    import numpy as np

    return {name: np.zeros(0, _KIND) for name in columns}
