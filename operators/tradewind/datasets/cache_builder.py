"""Build one Levanter cache from shards, with the layout and the ledger of Levanter's own builder.

Levanter stores each array in large chunks, and writing a part of a chunk rewrites all of it. So the unit of work is a
chunk: a worker assembles it from its shards and writes it once.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.cache_rows import LEDGER_FILE
from tradewind.datasets.files import exists, join, write_text
from tradewind.datasets.ray_tasks import spread
from tradewind.datasets.token_shards import Shard
from tradewind.storage import file_system_at
from tradewind.storage.filesystems import remove_file

if TYPE_CHECKING:
    import numpy as np

_MAX_LOCAL_VALUES: Final = 64_000_000
"""Up to so many values of the first field, this process writes the arrays itself."""


@dataclass(frozen=True)
class _Part:
    """Elements ``begin`` to ``end`` of a shard, which go into a chunk; ``added`` is added to offsets."""

    shard: Shard
    begin: int
    end: int
    added: int


@dataclass(frozen=True)
class _Chunk:
    """A part of one array that one write stores.

    Attributes:
        field: Number of the field.
        is_offsets: Whether the elements are ends of documents, and not values.
        start: Its first index in the array.
        first: Values before those of the shards.
    """

    field: int
    is_offsets: bool
    start: int
    first: tuple[int, ...]
    parts: tuple[_Part, ...]


def is_built(path: str) -> bool:
    """Whether ``path`` holds a finished cache; makes one request."""
    return exists(join(path, LEDGER_FILE))


def build_cache(
    path: str, files: Mapping[str, Sequence[Shard]], fields: Sequence[tuple[str, str]], processor: Any, metadata: Any
) -> None:
    """Write a cache of these files' shards, in their order; the keys are the names of the files in the ledger."""
    write_text(join(path, LEDGER_FILE), write_arrays(path, files, fields, processor.output_exemplar, metadata))


def write_arrays(
    path: str, files: Mapping[str, Sequence[Shard]], fields: Sequence[tuple[str, str]], exemplar: Any, metadata: Any
) -> str:
    """Write all of a cache but its ledger; return that. Until the caller has written it, the cache is not finished."""
    from levanter.store.cache import CacheLedger, CacheMetadata
    from levanter.store.jagged_array import DEFAULT_WRITE_CHUNK_SIZE
    from levanter.store.tree_store import TreeStore

    remove_file(*file_system_at(join(path, LEDGER_FILE)))
    TreeStore.open(exemplar, path, mode="w", cache_metadata=True)
    ordered = [shard for shards in files.values() for shard in shards if shard.documents]
    if ordered:
        chunks = list(_chunks(ordered, len(fields), DEFAULT_WRITE_CHUNK_SIZE))
        work = partial(_write_chunk, path=path, exemplar=exemplar, fields=tuple(fields))
        is_small = sum(shard.counts[0] for shard in ordered) <= _MAX_LOCAL_VALUES
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
    return str(ledger.to_json())


def ledger_names(paths: Sequence[str]) -> list[str]:
    """Return Levanter's ledger names of these files: number and path without the common prefix."""
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
    """Cut an array of ``first`` and then ``counts`` elements of each shard at multiples of ``size``."""
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
    pieces.clear()  # else memory holds the chunk twice during the write
    array[chunk.start : chunk.start + len(values)].write(values).result()
    return len(values)
