"""Distribute rows to other shards by key: sorted runs in one file for each shard, and a streaming merge of them.

A shard sorts as many rows as its memory holds by bucket, key and ``sort_by``, writes them as a run, and continues. The
file is all runs, then an index with one slot for each run and bucket. A bucket is read as the merge of its segments of
all files, in the order of the shards and of their rows. Each block has a checksum, so a reader never takes a damaged or
cut block for rows.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import pickle
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import IO, Any, Final, NamedTuple

from tradewind.datasets.dataset import Shuffle, first_row
from tradewind.datasets.rows import RowError, Rows, SeveralRowsError, error_text
from tradewind.storage import file_system_at
from tradewind.text import single_line, truncated_repr

_BLOCK: Final = struct.Struct("<III")
"""Header of a block: length of its packed bytes, their CRC-32, number of rows."""
_SLOT: Final = struct.Struct("<QQQI")
"""Entry of the index: where the segment begins, its length in bytes, number of rows, CRC-32 of these three."""
_SUM_BYTES: Final = 4
_BLOCK_BYTES: Final = 1 << 18
_ROW_BYTES: Final = 200
"""Memory of an entry beside its pickled row."""
_MIN_SEGMENTS: Final = 16
_WINDOW_BYTES: Final = (1 << 16, 1 << 22)
"""Bytes that a reader asks for at once, at least and at most."""
_NO_SUCH_RANGE: Final = 416
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
    data = b"s" + key.encode("utf-8", "surrogatepass") if type(key) is str else _key_bytes(key)  # most are texts
    return zlib.crc32(data) % buckets


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
    if key != key:
        raise RowError("The key is NaN, which equals no other key.")
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
        rows: State of this shard: what happens to a row without a usable key.
        memory_bytes: Memory of the worker.
    """

    def __init__(
        self, shuffle: Shuffle, buckets: int, shard: int, rows: Rows, memory_bytes: int = DEFAULT_MEMORY
    ) -> None:
        self._shuffle = shuffle
        self._rows = rows
        self._next = shard  # rows without a key are dealt in turn; not all shards begin at the same bucket
        self._max_bytes = max(memory_bytes // 4, 1 << 20)
        self._buckets: list[list[Entry]] = [[] for _ in range(buckets)]
        self._runs: list[list[bytes]] = []

    def write(self, stream: Iterable[Any], file: IO[bytes]) -> tuple[int, int]:
        """Write the rows and the index to ``file``, from its beginning; return the number of rows and of runs."""
        count = size = 0
        for row in stream:
            try:
                bucket, entry = self._entry(row)
            except Exception as error:
                self._rows.reject(error)
                continue
            self._buckets[bucket].append(entry)
            count += 1
            size += len(entry[2]) + _ROW_BYTES
            if size > self._max_bytes:
                self._write_run(file)
                size = 0
        if size:
            self._write_run(file)
        for run in self._runs:
            file.write(b"".join(run))
        return count, len(self._runs)

    def _entry(self, row: Any) -> tuple[int, Entry]:
        shuffle = self._shuffle
        if shuffle.key is None:
            self._next += 1
            return (self._next - 1) % len(self._buckets), (None, None, _pickled(row))
        key = shuffle.key(row)
        sort = None if shuffle.sort_by is None else _sortable(shuffle.sort_by(row))
        return bucket_of(key, len(self._buckets)), (key, sort, _pickled(row))

    def _write_run(self, file: IO[bytes]) -> None:
        slots = []
        for entries in self._buckets:
            start = file.tell()
            count = _write_blocks(file, self._ordered(entries)) if entries else 0
            slots.append(_slot(start, file.tell() - start, count))
            entries.clear()
        self._runs.append(slots)

    def _ordered(self, entries: list[Entry]) -> Iterator[Entry]:
        if self._shuffle.key is not None:
            entries = _sorted(entries, self._shuffle)
        return iter(entries) if self._shuffle.combiner is None else self._combined(entries)

    def _combined(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        shuffle = self._shuffle
        assert shuffle.combiner is not None
        for key, group in itertools.groupby(entries, itemgetter(0)):
            if shuffle.combiner is first_row:
                yield next(group)
                continue
            self._rows.row = key
            results = results_of(shuffle.combiner, key, group)
            if shuffle.sort_by is None:
                yield from ((key, None, _pickled(row)) for row in results)
            else:
                sortable = [(key, _sortable(shuffle.sort_by(row)), _pickled(row)) for row in results]
                yield from sorted(sortable, key=itemgetter(1))


def _slot(start: int, length: int, rows: int) -> bytes:
    fields = _SLOT.pack(start, length, rows, 0)[:-_SUM_BYTES]
    return fields + zlib.crc32(fields).to_bytes(_SUM_BYTES, "little")


def _sorted(entries: list[Entry], shuffle: Shuffle) -> list[Entry]:
    if shuffle.sort_by is None:
        with suppress(TypeError):  # twice as fast as by tuples, in which equal keys need no order, as None has none
            return sorted(entries, key=itemgetter(0))
    try:
        return sorted(entries, key=itemgetter(slice(0, 2 if shuffle.sort_by else 1)))
    except TypeError as error:
        raise _not_comparable(error) from error


def _not_comparable(error: TypeError) -> RowError:
    return SeveralRowsError(
        f"Keys, or values of sort_by, cannot be compared: {single_line(error)}. Give all rows keys of one type, such "
        "as str(key)."
    )


def _sortable(value: Any) -> Any:
    if value != value:
        raise RowError("sort_by returned NaN, which has no place in an order.")
    return value


def _pickled(row: Any) -> bytes:
    try:
        return pickle.dumps(row, 5)
    except Exception as error:
        raise RowError(
            f"A row of the type {type(row).__name__} cannot go to another shard: {error_text(error)}. Make it of "
            "dicts, lists, texts and numbers."
        ) from error


def results_of(fn: Callable[[Any, Iterator[Any]], Any], key: Any, group: Iterator[Entry]) -> Iterator[Any]:
    """Yield the result or the results of a reducer for one key."""
    result = fn(key, (pickle.loads(payload) for _, _, payload in group))
    if hasattr(result, "__next__"):
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
            yield from rows.numbered(pickle.loads(payload) for _, _, payload in entries)
            return
        broken: list[Exception] = []
        for number, (key, group) in enumerate(itertools.groupby(_watched(entries, broken), itemgetter(0)), 1):
            rows.number, rows.row = number, key
            if shuffle.reducer is first_row:
                yield pickle.loads(next(group)[2])
                continue
            try:
                yield from rows.whole(partial(results_of, shuffle.reducer, key, group))
            except Exception as error:
                raise broken[0] if broken else error from None
            if broken:  # its rows could not be read, which the reducer may have caught
                raise broken[0]


def _watched(entries: Iterator[Entry], broken: list[Exception]) -> Iterator[Entry]:
    try:
        yield from entries
    except Exception as error:
        broken.append(error)
        raise


def _segments(files: Sequence[ShuffleFile], bucket: int) -> list[_Segment]:
    wanted = [(file, file.slot(run, bucket)) for file in files for run in range(file.runs)]
    if not wanted:
        return []
    found = _ranges([(file.path, start, start + _SLOT.size) for file, start in wanted])
    segments = []
    for (file, _), data in zip(wanted, found, strict=True):
        if len(data) != _SLOT.size:
            raise DamagedShuffleError(file.path, "gone or cut off")
        start, length, rows, _ = _SLOT.unpack(data)
        if data != _slot(start, length, rows):
            raise DamagedShuffleError(file.path, "damaged")
        if rows:
            segments.append(_Segment(file.path, start, length, rows))
    return segments


def _ranges(wanted: Sequence[tuple[str, int, int]]) -> list[bytes]:
    """Read parts of files, each from a path's start to its end, all at once if the store can."""
    stored = [file_system_at(path) for path, _, _ in wanted]
    starts, ends = [start for _, start, _ in wanted], [end for _, _, end in wanted]
    found = stored[0][0].cat_ranges([name for _, name in stored], starts, ends, on_error="return")
    for (path, _, _), data in zip(wanted, found, strict=True):
        if isinstance(data, Exception):
            if not _is_cut(data):
                raise data
            raise DamagedShuffleError(path, "gone or cut off")
    return list(found)


def _is_cut(error: Exception) -> bool:
    """Whether the file is gone, or ends before the range that was asked for, as the clients of Google and S3 say it."""
    return (
        isinstance(error, FileNotFoundError)
        or getattr(error, "code", None) == _NO_SUCH_RANGE
        or getattr(error, "errno", None) == errno.EINVAL
    )


def _merged(segments: Sequence[_Segment], shuffle: Shuffle, max_bytes: int, stack: ExitStack) -> Iterator[Entry]:
    """Merge the segments, in groups beforehand if their blocks need more than ``max_bytes``."""
    limit = max(_MIN_SEGMENTS, max_bytes // (_BLOCK_BYTES * 3))
    window = max_bytes // (2 * max(min(len(segments), limit), 1))
    window = min(max(window, _WINDOW_BYTES[0]), _WINDOW_BYTES[1])
    opened = (_opened(segments[at : at + limit], window) for at in range(0, len(segments), limit))
    if shuffle.key is None:
        return itertools.chain.from_iterable(itertools.chain.from_iterable(opened))
    order = itemgetter(slice(0, 2)) if shuffle.sort_by else itemgetter(0)  # heapq.merge does not order equal keys
    if len(segments) <= limit:
        return _merge(next(opened, []), order)
    sources = [_read_file(_spilled(_merge(group, order), stack)) for group in opened]
    while len(sources) > limit:
        groups = [sources[at : at + limit] for at in range(0, len(sources), limit)]
        sources = [_read_file(_spilled(_merge(group, order), stack)) for group in groups]
    return _merge(sources, order)


def _opened(segments: Sequence[_Segment], window: int) -> list[Iterator[Entry]]:
    """Read the beginnings of all segments at once: a merge needs all of them before it yields its first row."""
    ends = [min(segment.start + window, segment.start + segment.length) for segment in segments]
    begun = _ranges([(segment.path, segment.start, end) for segment, end in zip(segments, ends, strict=True)])
    return [
        _read_segment(segment, _Window(segment, window, held)) for segment, held in zip(segments, begun, strict=True)
    ]


def _merge(sources: Sequence[Iterator[Entry]], order: Callable[[Entry], Any]) -> Iterator[Entry]:
    return _comparable(heapq.merge(*sources, key=order))


def _comparable(entries: Iterator[Entry]) -> Iterator[Entry]:
    try:
        yield from entries
    except TypeError as error:
        raise _not_comparable(error) from error


def _spilled(entries: Iterator[Entry], stack: ExitStack) -> IO[bytes]:
    file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  the stack closes it
    _write_blocks(file, entries)
    file.seek(0)
    return file


def _read_segment(segment: _Segment, reader: _Window) -> Iterator[Entry]:
    left = segment.rows
    while left > 0:
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
    """Reads a segment of a file in steps of ``size`` bytes: one request each, and no file that stays open.

    ``held`` is its beginning, which has been read already.
    """

    def __init__(self, segment: _Segment, size: int, held: bytes) -> None:
        self._fs, self._name = file_system_at(segment.path)
        self._path = segment.path
        self._at = segment.start + len(held)
        self._end = segment.start + segment.length
        self._size = size
        self._held = held

    def read(self, count: int) -> bytes:
        if len(self._held) < count and self._at < self._end:
            end = min(self._at + max(self._size, count - len(self._held)), self._end)
            try:
                more: bytes = self._fs.cat_file(self._name, start=self._at, end=end)
            except FileNotFoundError as error:
                raise DamagedShuffleError(self._path, "gone") from error
            self._at = end
            self._held += more
        data, self._held = self._held[:count], self._held[count:]
        return data
