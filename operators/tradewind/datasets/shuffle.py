"""Distribute rows to other shards by key: sorted runs in one file for each shard, and a streaming merge of them.

A shard sorts as many rows as its memory holds by bucket, key and ``sort_by``, writes them as a run, and goes on. The
file is all runs, then an index with one slot for each run and bucket. A bucket is read as the merge of its segments of
all files, in the order of the shards and of their rows. Each block has a checksum, so a reader never takes a damaged or
cut block for rows.
"""

from __future__ import annotations

import heapq
import itertools
import pickle
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import itemgetter
from typing import IO, Any, Final, NamedTuple

from tradewind.datasets.dataset import Shuffle
from tradewind.datasets.rows import RowError, Rows
from tradewind.storage import open_file
from tradewind.text import single_line, truncated_repr

_BLOCK: Final = struct.Struct("<III")
"""Header of a block: length of its packed bytes, their CRC-32, number of rows."""
_SLOT: Final = struct.Struct("<QQQ")
"""Entry of the index: where the segment begins, its length in bytes, number of rows."""
_BLOCK_BYTES: Final = 1 << 18
_ROW_BYTES: Final = 200
"""Memory of an entry beside its pickled row."""
_MIN_SEGMENTS: Final = 16
_WINDOW_BYTES: Final = (1 << 16, 1 << 22)
"""Bytes that a reader asks for at once, at least and at most."""
DEFAULT_MEMORY: Final = 1 << 30
"""Memory of a worker in bytes, unless a user gives another; a quarter holds rows."""

Entry = tuple[Any, Any, bytes]
"""Key, value of ``sort_by``, pickled row."""


class DamagedShuffleError(RuntimeError):
    """The file of a shuffle at ``path`` is gone, cut or damaged: its stage must make it again."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        super().__init__(f"{path} is {problem}.")


@dataclass(frozen=True)
class ShuffleFile:
    """The file of one shard: ``runs`` sorted runs for ``buckets`` buckets, of ``size_bytes`` in all."""

    path: str
    runs: int
    buckets: int
    size_bytes: int

    def slot(self, run: int, bucket: int) -> int:
        """Return where the index has the slot of a segment."""
        return self.size_bytes - (self.runs * self.buckets - run * self.buckets - bucket) * _SLOT.size


class _Segment(NamedTuple):
    path: str
    start: int
    length: int
    rows: int


def bucket_of(key: Any, buckets: int) -> int:
    """Return the bucket of a key: the same in each process, and for equal numbers of different types.

    Raises:
        RowError: A key of this type has no stable hash.
    """
    return zlib.crc32(_key_bytes(key)) % buckets


def _key_bytes(key: Any) -> bytes:
    match key:
        case str():
            return b"s" + key.encode("utf-8", "surrogatepass")
        case bytes():
            return b"b" + key
        case None:
            return b"n"
        case bool() | int():
            return b"i%d" % key
        case float() if key == key:
            return b"i%d" % int(key) if key.is_integer() else b"f" + repr(key).encode()
        case tuple():
            parts = [_key_bytes(part) for part in key]
            return b"".join([b"t%d" % len(parts), *(b"%d:" % len(part) + part for part in parts)])
        case _ if type(key).__module__ == "numpy" and hasattr(key, "item"):
            return _key_bytes(key.item())
    raise RowError(
        f"The key {truncated_repr(key)} is a {type(key).__name__}: give strings, numbers, bytes, None or tuples of "
        "these."
    )


class ShuffleWriter:
    """Sort and write the rows of one shard.

    Args:
        shuffle: Key, order and combiner.
        buckets: Number of shards that it makes.
        shard: Number of this shard.
        memory_bytes: Memory of the worker.
    """

    def __init__(self, shuffle: Shuffle, buckets: int, shard: int, memory_bytes: int = DEFAULT_MEMORY) -> None:
        self._shuffle = shuffle
        self._buckets = buckets
        self._next = shard  # rows without a key are dealt in turn; not all shards begin at the same bucket
        self._max_bytes = max(memory_bytes // 4, 1 << 20)
        self._entries: list[tuple[int, Any, Any, bytes]] = []
        self._bytes = 0
        self._runs: list[list[tuple[int, int, int]]] = []

    def write(self, rows: Iterable[Any], file: IO[bytes]) -> tuple[int, int]:
        """Write the rows and the index to ``file``, from its beginning; return the number of rows and of runs."""
        key_of, sort_of = self._shuffle.key, self._shuffle.sort_by
        count = 0
        for row in rows:
            count += 1
            payload = pickle.dumps(row, 5)
            if key_of is None:
                self._entries.append((self._next % self._buckets, None, None, payload))
                self._next += 1
            else:
                key = key_of(row)
                sort = None if sort_of is None else sort_of(row)
                self._entries.append((bucket_of(key, self._buckets), key, sort, payload))
            self._bytes += len(payload) + _ROW_BYTES
            if self._bytes > self._max_bytes:
                self._write_run(file)
        self._write_run(file)
        for run in self._runs:
            file.write(b"".join(_SLOT.pack(*slot) for slot in run))
        return count, len(self._runs)

    def _write_run(self, file: IO[bytes]) -> None:
        if not self._entries:
            return
        _sort(self._entries, slice(0, 3) if self._shuffle.sort_by else slice(0, 2 if self._shuffle.key else 1))
        slots = [(0, 0, 0)] * self._buckets
        for bucket, entries in itertools.groupby(self._entries, itemgetter(0)):
            plain: Iterator[Entry] = (entry[1:] for entry in entries)
            if self._shuffle.combiner is not None:
                plain = _combined(plain, self._shuffle)
            start = file.tell()
            rows = _write_blocks(file, plain)
            slots[bucket] = (start, file.tell() - start, rows)
        self._runs.append(slots)
        self._entries, self._bytes = [], 0


def _sort(entries: list[Any], by: slice) -> None:
    try:
        entries.sort(key=itemgetter(by))
    except TypeError as error:
        raise RowError(f"Keys, or values of sort_by, cannot be compared: {single_line(error)}.") from error


def _combined(entries: Iterator[Entry], shuffle: Shuffle) -> Iterator[Entry]:
    assert shuffle.combiner is not None
    for key, group in itertools.groupby(entries, itemgetter(0)):
        for row in results_of(shuffle.combiner, key, group):
            sort = None if shuffle.sort_by is None else shuffle.sort_by(row)
            yield key, sort, pickle.dumps(row, 5)


def results_of(fn: Callable[[Any, Iterator[Any]], Any], key: Any, group: Iterator[Entry]) -> Iterator[Any]:
    """Yield the result or the results of a reducer for one key."""
    result = fn(key, (pickle.loads(payload) for _, _, payload in group))
    if isinstance(result, Iterator):
        yield from result
    else:
        yield result


def _write_blocks(file: IO[bytes], entries: Iterator[Entry]) -> int:
    import zstandard

    packer = zstandard.ZstdCompressor(level=1)
    total = 0
    while block := _next_block(entries):
        packed = packer.compress(pickle.dumps(block, 5))
        file.write(_BLOCK.pack(len(packed), zlib.crc32(packed), len(block)))
        file.write(packed)
        total += len(block)
    return total


def _next_block(entries: Iterator[Entry]) -> list[Entry]:
    block: list[Entry] = []
    size = 0
    for entry in entries:
        block.append(entry)
        size += len(entry[2]) + _ROW_BYTES
        if size >= _BLOCK_BYTES:
            break
    return block


def read_bucket(
    files: Sequence[ShuffleFile], bucket: int, shuffle: Shuffle, rows: Rows, memory_bytes: int = DEFAULT_MEMORY
) -> Iterator[Any]:
    """Yield the rows of one bucket, or the results of its reducer, key by key.

    Raises:
        DamagedShuffleError: A file is cut or damaged.
    """
    segments = _segments(files, bucket)
    with ExitStack() as stack:
        entries = _merged(segments, shuffle, memory_bytes // 4, stack)
        if shuffle.reducer is None:
            yield from (pickle.loads(payload) for _, _, payload in entries)
            return
        for number, (key, group) in enumerate(itertools.groupby(entries, itemgetter(0)), 1):
            rows.number, rows.row = number, key
            try:
                yield from results_of(shuffle.reducer, key, group)
            except DamagedShuffleError:
                raise
            except Exception as error:
                rows.reject(error)


def _segments(files: Sequence[ShuffleFile], bucket: int) -> list[_Segment]:
    from tradewind.storage import file_system_at

    wanted = [(file, file.slot(run, bucket)) for file in files for run in range(file.runs)]
    if not wanted:
        return []
    fs = file_system_at(wanted[0][0].path)[0]
    names = [file_system_at(file.path)[1] for file, _ in wanted]
    starts = [start for _, start in wanted]
    found = fs.cat_ranges(names, starts, [start + _SLOT.size for start in starts], on_error="return")
    segments = []
    for (file, _), data in zip(wanted, found, strict=True):
        if not isinstance(data, bytes) or len(data) != _SLOT.size:
            raise DamagedShuffleError(file.path, "gone or cut off")
        start, length, rows = _SLOT.unpack(data)
        if start + length > file.size_bytes:
            raise DamagedShuffleError(file.path, "damaged")
        if rows:
            segments.append(_Segment(file.path, start, length, rows))
    return segments


def _merged(segments: Sequence[_Segment], shuffle: Shuffle, max_bytes: int, stack: ExitStack) -> Iterator[Entry]:
    """Merge the segments, in groups beforehand if their blocks need more than ``max_bytes``."""
    order = None if shuffle.key is None else itemgetter(slice(0, 2 if shuffle.sort_by else 1))
    limit = max(_MIN_SEGMENTS, max_bytes // (_BLOCK_BYTES * 3))
    window = min(max(max_bytes // (2 * max(len(segments), 1)), _WINDOW_BYTES[0]), _WINDOW_BYTES[1])
    sources: list[Iterator[Entry]] = [_read_segment(segment, window) for segment in segments]
    while len(sources) > limit:
        groups = [sources[at : at + limit] for at in range(0, len(sources), limit)]
        sources = [_read_file(_spilled(_merge(group, order), stack)) for group in groups]
    return _merge(sources, order)


def _merge(sources: Sequence[Iterator[Entry]], order: Callable[[Entry], Any] | None) -> Iterator[Entry]:
    if order is None or len(sources) < 2:
        return itertools.chain.from_iterable(sources)
    return _comparable(heapq.merge(*sources, key=order))


def _comparable(entries: Iterator[Entry]) -> Iterator[Entry]:
    try:
        yield from entries
    except TypeError as error:
        raise RowError(
            f"Keys of two shards, or values of sort_by, cannot be compared: {single_line(error)}."
        ) from error


def _spilled(entries: Iterator[Entry], stack: ExitStack) -> IO[bytes]:
    file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  the stack closes it
    _write_blocks(file, entries)
    file.seek(0)
    return file


def _read_segment(segment: _Segment, window: int) -> Iterator[Entry]:
    left = segment.rows
    with open_file(segment.path) as file:
        reader = _Window(file, segment, window)
        while left:
            block = _read_block(reader.read, segment.path)
            left -= len(block)
            yield from block


def _read_file(file: IO[bytes]) -> Iterator[Entry]:
    while header := file.read(_BLOCK.size):
        length, _, _ = _BLOCK.unpack(header)
        yield from _unpacked(file.read(length), "the local disk")


def _read_block(read: Callable[[int], bytes], path: str) -> list[Entry]:
    header = read(_BLOCK.size)
    if len(header) < _BLOCK.size:
        raise DamagedShuffleError(path, "cut off")
    length, checksum, rows = _BLOCK.unpack(header)
    packed = read(length)
    if len(packed) != length or zlib.crc32(packed) != checksum:
        raise DamagedShuffleError(path, "cut off or damaged")
    block = _unpacked(packed, path)
    if len(block) != rows or not rows:
        raise DamagedShuffleError(path, "damaged")
    return block


def _unpacked(packed: bytes, path: str) -> list[Entry]:
    import zstandard

    try:
        entries: list[Entry] = pickle.loads(zstandard.ZstdDecompressor().decompress(packed))
    except zstandard.ZstdError as error:
        raise DamagedShuffleError(path, f"damaged: {single_line(error)}") from error
    return entries


class _Window:
    """Reads a segment of a file in steps of ``size`` bytes: one request each."""

    def __init__(self, file: IO[bytes], segment: _Segment, size: int) -> None:
        self._file = file
        self._at = segment.start
        self._end = segment.start + segment.length
        self._size = size
        self._held = b""

    def read(self, count: int) -> bytes:
        if len(self._held) < count:
            wanted = min(max(self._size, count - len(self._held)), self._end - self._at)
            self._file.seek(self._at)
            more = self._file.read(wanted)
            self._at += len(more)
            self._held += more
        data, self._held = self._held[:count], self._held[count:]
        return data
