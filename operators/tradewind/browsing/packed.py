"""Compressed files as streams that can be entered in the middle.

A gzip stream can be read only from its beginning, since each part refers to the text before it. So the first reader
leaves restart points: copies of the decompressor, each with the 32 KiB that it may refer to. Between requests, the
process goes through the rest of the file that was read last. Other formats keep the stream where the last page ended,
and begin again for a place before that.
"""

from __future__ import annotations

import io
import math
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, NamedTuple, cast

from tradewind.browsing.access import Access, OutOfTimeError, Stored
from tradewind.browsing.refusals import BrowsingError, UnreadableError
from tradewind.datasets.token_rows import open_unpacked
from tradewind.text import single_line

READ_ERRORS: Final = (OSError, EOFError, zlib.error)
"""What reading of a compressed file raises."""
PACKED: Final = (".gz", ".zst", ".zstd", ".bz2")
_READ_BYTES: Final = 1 << 18
_OUT_BYTES: Final = 1 << 20
_TAIL_BYTES: Final = 3 << 20
_POINT_BYTES: Final = 4 << 20
"""Compressed bytes between the first restart points; a page that begins between two unpacks so much."""
_MAX_POINTS: Final = 160
"""Restart points of one file, of about 40 KB each: when there are more, every second one goes."""
_MAX_INDEX_S: Final = 30.0
"""CPU seconds for which restart points of a file are made between requests: a file of about 8 GB."""
_MAX_KEPT: Final = 4
"""Compressed files whose restart points or streams one process keeps."""


class Unpacked(io.RawIOBase):
    """The content of a compressed file, from any offset on.

    The last bytes that were unpacked stay, so that the next page can begin a little before them.

    Attributes:
        access: Of the present request, whose deadline counts.
        at: Offset of the next byte that a reader gets.
        unpacked: Offset of the next byte that will be unpacked.
    """

    access: Access

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.at = self.unpacked = 0
        self._tail = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: Any) -> int:
        if self.at == self.unpacked:
            more = self._unpack()
            self._tail = self._tail[-(_TAIL_BYTES - len(more)) :] + more
        begin = self.at - (self.unpacked - len(self._tail))
        data = self._tail[begin : begin + len(buffer)]
        self.at += len(data)
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET:
            raise io.UnsupportedOperation("a compressed stream is entered by its offset")
        if not self.unpacked - len(self._tail) <= offset <= self.unpacked:
            self.go_near(offset)
            while self.unpacked < offset and self._forward():
                pass
        self.at = min(offset, self.unpacked)
        return self.at

    def seek_fraction(self, fraction: float) -> int:
        """Go to a fraction of the compressed bytes; return the offset in the content."""
        target = int(self.size * fraction)
        self.go_near_packed(target)
        begin, offset = self.packed_at(), self.unpacked
        while self.packed_at() < target:
            begin, offset = self.packed_at(), self.unpacked
            if not self._forward():
                break
        share = (target - begin) / max(self.packed_at() - begin, 1)  # of the last step, which may be a whole file
        self.at = offset + int((self.unpacked - offset) * min(max(share, 0.0), 1.0))
        return self.at

    def fraction(self) -> float:
        """The fraction of the compressed bytes that was read."""
        return min(self.packed_at() / self.size, 1.0) if self.size else 1.0

    def _forward(self) -> bool:
        if self.access.left_s < 0:
            self.at = self.unpacked
            raise OutOfTimeError(self.fraction())
        return self.next_step()

    def next_step(self) -> bool:
        """Unpack the next bytes; return whether there were some."""
        self._tail = self._unpack()
        return bool(self._tail)

    def _unpack(self) -> bytes:
        data = self.next_bytes(_OUT_BYTES)
        self.unpacked += len(data)
        return data

    def begin_at(self, offset: int) -> None:
        """Set the place after the decoder has moved."""
        self.at = self.unpacked = offset
        self._tail = b""

    def next_bytes(self, count: int) -> bytes:
        """Return the next bytes, at most ``count``; none at the end."""
        raise NotImplementedError

    def packed_at(self) -> int:
        """The number of compressed bytes that were read."""
        raise NotImplementedError

    def go_near(self, offset: int) -> None:
        """Go to the best known place at or before ``offset``."""
        raise NotImplementedError

    def go_near_packed(self, target: int) -> None:
        """Go to the best known place at or before a number of compressed bytes."""
        raise NotImplementedError


class _Point(NamedTuple):
    """A place where a gzip stream can be entered: offset of the content, compressed bytes before it, decompressor."""

    offset: int
    packed: int
    decoder: Any


class _Points:
    """Restart points of one file, in order."""

    def __init__(self) -> None:
        self._spacing = _POINT_BYTES
        self.all = [_Point(0, 0, _decompressor())]

    def add(self, offset: int, packed: int, decoder: Any) -> None:
        """Add a point if it is far enough behind the last."""
        if packed - self.all[-1].packed < self._spacing:
            return
        self.all.append(_Point(offset, packed, decoder.copy()))
        if len(self.all) > _MAX_POINTS:
            del self.all[1::2]
            self._spacing *= 2


class GzipStream(Unpacked):
    """A gzip file of any number of members, with restart points."""

    def __init__(self, access: Access, stored: Stored, points: _Points | None = None) -> None:
        super().__init__(stored.size)
        self.access = access
        self._stored = stored
        self._file = access.open(stored.path)
        self._points = points or _Points()
        self._indexer: GzipStream | None = None
        self._index_s = 0.0
        self._go(self._points.all[-1] if points else self._points.all[0])

    def close(self) -> None:
        self._file.close()
        if self._indexer is not None:
            self._indexer.close()
        super().close()

    def index_step(self) -> bool:
        """Unpack a step behind the last restart point, for later requests; return whether there is more to do."""
        if self.closed or self._index_s > _MAX_INDEX_S:
            return False
        began = time.process_time()
        try:
            if self._indexer is None:
                self._indexer = GzipStream(self.access, self._stored, self._points)
            has_more = bool(self._indexer.next_step())
        except (BrowsingError, *READ_ERRORS):
            has_more = False  # the request that comes there says it
        self._index_s = self._index_s + time.process_time() - began if has_more else math.inf
        return has_more

    def _go(self, point: _Point) -> None:
        offset, self._packed, decoder = point
        self.begin_at(offset)
        self._decoder = decoder.copy()
        self._file.seek(self._packed)
        self._input = b""

    def next_bytes(self, count: int) -> bytes:
        while True:
            if self._decoder.eof and not self._next_member():
                return b""
            if not self._input:
                self._points.add(self.unpacked, self._packed, self._decoder)
                self._input = self._file.read(_READ_BYTES)
                if not self._input:
                    raise EOFError("the file ends inside a compressed member")
            before = len(self._input)
            data: bytes = self._decoder.decompress(self._input, count)
            self._input = self._decoder.unconsumed_tail or self._decoder.unused_data
            self._packed += before - len(self._input)
            if data:
                return data

    def _next_member(self) -> bool:
        while not (rest := self._input.lstrip(b"\0")):  # padding
            self._packed += len(self._input)
            self._input = self._file.read(_READ_BYTES)
            if not self._input:
                return False
        self._packed += len(self._input) - len(rest)
        self._input, self._decoder = rest, _decompressor()
        return True

    def packed_at(self) -> int:
        return self._packed

    def go_near(self, offset: int) -> None:
        self._nearest(lambda point: point.offset <= offset, is_ahead=self.unpacked <= offset)

    def go_near_packed(self, target: int) -> None:
        self._nearest(lambda point: point.packed <= target, is_ahead=self._packed <= target)

    def _nearest(self, is_before: Callable[[_Point], bool], *, is_ahead: bool) -> None:
        best = max(filter(is_before, self._points.all), key=lambda point: point.offset)
        if not is_ahead or best.offset > self.unpacked:
            self._go(best)


class ForwardStream(Unpacked):
    """A file that ``open_unpacked`` reads, from its beginning only."""

    def __init__(self, access: Access, stored: Stored) -> None:
        super().__init__(stored.size)
        self.access = access
        self._path = stored.path
        self._stack = ExitStack()
        self._begin()

    def close(self) -> None:
        self._stack.close()
        super().close()

    def _begin(self) -> None:
        self._stack.close()
        self._file = self._stack.enter_context(self.access.open(self._path))
        self._content = self._stack.enter_context(open_unpacked(self._path, lambda _: self._file))
        self.begin_at(0)

    def next_bytes(self, count: int) -> bytes:
        data: bytes = self._content.read1(count) if hasattr(self._content, "read1") else self._content.read(count)
        return data

    def packed_at(self) -> int:
        return self._file.tell()

    def go_near(self, offset: int) -> None:
        if offset < self.unpacked:
            self._begin()

    def go_near_packed(self, target: int) -> None:
        if target < self.packed_at():
            self._begin()


_kept: OrderedDict[str, tuple[str, Unpacked]] = OrderedDict()
"""Path → state and stream of the files that were read last."""


def is_packed(path: str) -> bool:
    """Whether the name says that the file is compressed."""
    return path.endswith(PACKED)


def content_of(access: Access, stored: Stored) -> tuple[io.BufferedReader, Unpacked | None]:
    """Open a file's content for lines: itself, or unpacked as its name says, with the stream behind it.

    The caller releases both.
    """
    if not is_packed(stored.path):
        file = access.open(stored.path)
        return (file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast(Any, file))), None
    access.check(stored.path)
    state, stream = _kept.pop(stored.path, ("", None))
    if stream is not None and (state != stored.state or stream.closed):
        stream.close()
        stream = None
    if stream is None:
        is_gzip = stored.path.endswith(".gz")
        stream = GzipStream(access, stored) if is_gzip else ForwardStream(access, stored)
    stream.access = access
    _kept[stored.path] = stored.state, stream
    while len(_kept) > _MAX_KEPT:
        _kept.popitem(last=False)[1][1].close()
    return io.BufferedReader(stream, _OUT_BYTES), stream


def index_step() -> bool:
    """Prepare the gzip file that was read last for jumps, between requests; return whether there is more to do."""
    last = next(reversed(_kept.values()), None)
    return last is not None and isinstance(last[1], GzipStream) and last[1].index_step()


def release(file: io.BufferedReader, stream: Unpacked | None) -> None:
    """Close the file, or leave the stream of a packed one for the next request."""
    if stream is None:
        file.close()
    elif not stream.closed:
        file.detach()


def forget(path: str) -> None:
    """Close the stream of a packed file, for example after an error."""
    if path in _kept:
        _kept.pop(path)[1].close()


def damaged(path: str, error: Exception) -> UnreadableError:
    """Return the error of a file that cannot be unpacked further."""
    forget(path)
    return UnreadableError(f"{path} cannot be read on: {single_line(error)}. It is damaged, or still being written.")


def _decompressor() -> Any:
    return zlib.decompressobj(wbits=31)
