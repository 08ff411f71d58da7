"""Shards become one cache of Levanter's, with the layout and the ledger of its own builder.

Levanter keeps each array in large chunks, and a part of one cannot be written without reading and writing all of it.
So a chunk is the piece of work here: it is put together from the shards that reach into it, and written once.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.files import exists, join, write_text
from tradewind.datasets.ray_data import spread
from tradewind.datasets.token_shards import Shard
from tradewind.storage import file_system_at
from tradewind.storage.filesystems import remove_file

if TYPE_CHECKING:
    import numpy as np

LEDGER_FILE: Final = "shard_ledger.json"
"""``levanter.store.cache.LEDGER_FILE_NAME``, for those who do not import Levanter."""
_FEW_VALUES: Final = 64_000_000
"""Values of a field up to which this process writes the arrays."""


@dataclass(frozen=True)
class _Part:
    """What of a shard goes into a chunk: from ``begin`` to ``end``, and what is added if these are offsets."""

    shard: Shard
    begin: int
    end: int
    added: int


@dataclass(frozen=True)
class _Chunk:
    """A piece of one array that is written at once.

    Attributes:
        field: Number of the field.
        is_offsets: Whether these are the ends of documents, and not values.
        start: Where in the array it begins.
        first: Values that are put before those of the shards.
    """

    field: int
    is_offsets: bool
    start: int
    first: tuple[int, ...]
    parts: tuple[_Part, ...]


def is_built(path: str) -> bool:
    """Whether there is a finished cache at ``path``, known by one request."""
    return exists(join(path, LEDGER_FILE))


def build_cache(
    path: str, files: Mapping[str, Sequence[Shard]], fields: Sequence[tuple[str, str]], processor: Any, metadata: Any
) -> None:
    """Write a cache with these files' shards, in their order; the keys are what the ledger calls the files."""
    from levanter.store.cache import LEDGER_FILE_NAME, CacheLedger, CacheMetadata
    from levanter.store.jagged_array import DEFAULT_WRITE_CHUNK_SIZE
    from levanter.store.tree_store import TreeStore

    fs, root = file_system_at(join(path, LEDGER_FILE_NAME))
    remove_file(fs, root)
    exemplar = processor.output_exemplar
    TreeStore.open(exemplar, path, mode="w", cache_metadata=True)
    ordered = [shard for shards in files.values() for shard in shards if shard.documents]
    if ordered:
        chunks = list(_chunks(ordered, len(fields), DEFAULT_WRITE_CHUNK_SIZE))
        work = partial(_write_chunk, path=path, exemplar=exemplar, fields=tuple(fields))
        is_small = sum(shard.counts[0] for shard in ordered) <= _FEW_VALUES
        for _ in spread(chunks, work, is_small=is_small):
            pass
    ledger = CacheLedger(
        total_num_rows=sum(shard.documents for shard in ordered),
        shard_rows={name: sum(shard.documents for shard in shards) for name, shards in files.items()},
        is_finished=True,
        finished_shards=list(files),
        field_counts={name: sum(shard.counts[at] for shard in ordered) for at, (name, _) in enumerate(fields)},
        metadata=CacheMetadata(metadata),
    )
    write_text(join(path, LEDGER_FILE_NAME), ledger.to_json())


def ledger_names(paths: Sequence[str]) -> list[str]:
    """What Levanter calls the shards of these files in its ledger: their number, and what their paths do not share."""
    shared = os.path.dirname(paths[0]) if len(paths) == 1 else os.path.commonprefix(list(paths))
    names = [path[len(shared) :].removeprefix("/").replace(".", "_") for path in paths]
    return [
        f"{number:05d}_{''.join(each if each.isalnum() or each in '-_.' else '_' for each in name) or 'shard'}"
        for number, name in enumerate(names)
    ]


def _chunks(shards: Sequence[Shard], fields: int, size: int) -> Iterator[_Chunk]:
    for field in range(fields):
        counts = [shard.counts[field] for shard in shards]
        yield from _chunks_of(shards, counts, field, False, (), size)
        documents = [shard.documents for shard in shards]
        before = list(itertools.accumulate(counts, initial=0))
        yield from _chunks_of(shards, documents, field, True, (sum(documents),), size, before)


def _chunks_of(
    shards: Sequence[Shard],
    counts: Sequence[int],
    field: int,
    is_offsets: bool,
    first: tuple[int, ...],
    size: int,
    added: Sequence[int] = (),
) -> Iterator[_Chunk]:
    """An array with ``first`` and then so many elements of each shard, cut at multiples of ``size``."""
    parts: list[_Part] = []
    start, room = 0, size - len(first)
    for at, (shard, count) in enumerate(zip(shards, counts, strict=True)):
        done = 0
        while done < count:
            if not room:
                yield _Chunk(field, is_offsets, start, first, tuple(parts))
                start, first, parts, room = start + size, (), [], size
            taken = min(room, count - done)
            parts.append(_Part(shard, done, done + taken, added[at] if added else 0))
            done, room = done + taken, room - taken
    if parts or first:
        yield _Chunk(field, is_offsets, start, first, tuple(parts))


def _write_chunk(chunk: _Chunk, path: str, exemplar: Any, fields: tuple[tuple[str, str], ...]) -> int:
    import numpy as np
    from levanter.store.tree_store import TreeStore

    kinds = [kind for _, kind in fields]
    store = TreeStore.open(exemplar, path, mode="a").tree[fields[chunk.field][0]]
    array = store.offsets if chunk.is_offsets else store.data
    pieces = [np.array(chunk.first, np.int64)] if chunk.first else []
    for part in chunk.parts:
        if chunk.is_offsets:
            pieces.append(np.cumsum(part.shard.lengths(chunk.field))[part.begin : part.end] + part.added)
        else:
            pieces.append(part.shard.values(chunk.field, kinds, part.begin, part.end))
    values: np.ndarray = np.concatenate(pieces)
    pieces.clear()  # else the chunk is held twice while it is written
    array[chunk.start : chunk.start + len(values)].write(values).result()
    return len(values)
