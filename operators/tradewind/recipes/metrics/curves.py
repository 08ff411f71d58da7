"""Curves of a metrics file that may be long, or grow: read by ranges, down-sampled to what a page can draw.

A file up to ``MAX_BYTES`` is read whole. Of a larger one, the reader takes its end and ranges at equal distances, so
that a curve covers the whole training at a bounded cost. A later read continues at the offset where the last one ended.

A training that resumes repeats steps; of each step the later line counts, as in ``read_metrics``.
"""

from __future__ import annotations

import json
import math
import os
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from tradewind.cloud_tpu.goodput import MAX_LINE_CHARS, METRICS_FILE
from tradewind.datasets.files import join
from tradewind.records.parsing import is_count, is_number
from tradewind.storage.bounded_read import Content, open_regular

MAX_POINTS: Final = 2_000
"""Of one curve."""
MAX_NAMES: Final = 200
"""Names that are listed."""
MAX_CURVES: Final = 8
"""Curves of one answer."""
MAX_BYTES: Final = 4 << 20
"""Bytes of one read."""
_TAIL_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = 4096
_PLACE: Final = re.compile(r"([0-9]{1,15})@([0-9a-f]{8})")
_RANGES: Final = 32
_MAX_DEFAULT: Final = 2
_MAX_NAME_CHARS: Final = 200
_NOT_A_METRIC: Final = ("step", "time")
_PREFERRED: Final = ("train/loss", "eval/loss", "loss")
"""Names that are shown first."""


@dataclass(frozen=True)
class Curve:
    """One metric by step.

    Attributes:
        values: None for what is no finite number, as of a training that diverged.
    """

    name: str
    steps: tuple[int, ...]
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Curves:
    """Curves of a metrics file, or of its rows after an offset.

    Attributes:
        names: All names of metrics among the rows that were read, in the order in which a page offers them.
        place: Where the next read continues, with a mark of the file's first row.
        is_new: The rows are not the continuation of an earlier read: replace what is shown.
        rows: How many rows were read.
        sampled: The file is larger than one read, so rows between the ranges are missing.
        last_step: The newest step; None without a row.
        last_at: When its row was written, in seconds since 1970.
    """

    path: str
    names: tuple[str, ...]
    curves: tuple[Curve, ...]
    place: str
    is_new: bool
    rows: int
    sampled: bool
    last_step: int | None = None
    last_at: float | None = None


def metrics_path(output_path: str) -> str:
    """Return the path of the metrics file of a training's output."""
    return join(output_path, METRICS_FILE)


def read_curves(path: str, names: Collection[str] = (), after: str = "") -> Curves | None:
    """Return the curves of these names, by default of the losses; None without a file.

    Args:
        after: ``place`` of an earlier read: only rows after it, unless the file begins with another row since.

    Raises:
        ValueError: It is no regular file.
        StoreUnavailableError: The store does not answer.
    """
    try:
        size = _size(path)
        offset, known = _parse_place(after)
        start = offset if offset <= size else 0
        mark, ranges, read = _read_from(path, start, size)
        if start and mark != known:  # a training that begins anew writes the file anew
            start = 0
            mark, ranges, read = _read_from(path, start, size)
    except (FileNotFoundError, NotADirectoryError):
        return None
    points = _Points(names)
    end = start
    for (first, _), data in zip(ranges, read, strict=True):
        end = points.add(data, first, is_whole=first == start)
    return points.curves(path, f"{end}@{mark}", is_new=start == 0, sampled=len(ranges) > 1)


def _parse_place(place: str) -> tuple[int, str]:
    """Return the offset and the mark of a place; zero for a text that is none."""
    found = _PLACE.fullmatch(place)
    return (int(found[1]), found[2]) if found else (0, "")


def _read_from(path: str, start: int, size: int) -> tuple[str, list[tuple[int, int]], list[bytes]]:
    """Return the mark of the file's first row, and the ranges from ``start`` on with their bytes."""
    ranges = list(_ranges(start, size))
    head, *read = _read(path, [(0, min(size, _HEAD_BYTES)), *ranges])
    first_row = head[: head.find(b"\n") + 1] or head
    return f"{zlib.crc32(first_row):08x}", ranges, read


class _Points:
    """Points of the curves that are wanted, collected row by row: the rows themselves would need far more memory."""

    def __init__(self, wanted: Collection[str]) -> None:
        self._wanted = tuple(dict.fromkeys(wanted))[:MAX_CURVES]
        self._names: dict[str, None] = {}
        self._points: dict[str, dict[int, float | None]] = {name: {} for name in self._wanted or _PREFERRED}
        self._rows = 0
        self._last_step: int | None = None
        self._last_at: float | None = None

    def add(self, data: bytes, first: int, *, is_whole: bool) -> int:
        """Add the whole lines of a range that begins at offset ``first``; return the offset after the last of them.

        ``is_whole``: the range starts with the begin of a line.
        """
        begin = 0 if is_whole else data.find(b"\n") + 1
        end = data.rfind(b"\n") + 1
        while begin < end:
            stop = data.index(b"\n", begin)
            if (row := _row(data[begin:stop])) is not None:
                self._add_row(row)
            begin = stop + 1
        return first + end

    def _add_row(self, row: Mapping[str, Any]) -> None:
        self._rows += 1
        self._last_step, at = row["step"], row.get("time")
        self._last_at = float(at) if at is not None and is_number(at) else self._last_at
        for name, value in row.items():
            number = _number(value)
            if number is _NO_NUMBER or name in _NOT_A_METRIC or len(name) > _MAX_NAME_CHARS:
                continue
            if len(self._names) < MAX_NAMES:
                self._names.setdefault(name)
            if name in self._points:
                self._points[name][self._last_step or 0] = number
            elif not self._wanted and len(self._points) == len(_PREFERRED):
                self._points[name] = {self._last_step or 0: number}  # shown if there is no loss

    def curves(self, path: str, place: str, *, is_new: bool, sampled: bool) -> Curves:
        """Return the curves of the wanted names, or of the first that are usually wanted."""
        names = (*(name for name in _PREFERRED if name in self._names), *self._names)
        chosen = self._wanted or [name for name, points in self._points.items() if points][:_MAX_DEFAULT]
        found = []
        for name in chosen:
            if points := self._points[name]:
                kept = down_sample(sorted(points.items()))
                found.append(Curve(name, tuple(step for step, _ in kept), tuple(value for _, value in kept)))
        return Curves(
            path,
            tuple(dict.fromkeys(names)),
            tuple(found),
            place,
            is_new,
            self._rows,
            sampled,
            self._last_step,
            self._last_at,
        )


def down_sample(
    points: Sequence[tuple[int, float | None]], max_points: int = MAX_POINTS
) -> list[tuple[int, float | None]]:
    """Return at most ``max_points``: of each group of neighbors the lowest and the highest, so that peaks stay."""
    if len(points) <= max_points:
        return list(points)
    groups = max(1, (max_points - 2) // 2)
    inner = points[1:-1]
    kept = [points[0]]
    for group in range(groups):
        part = inner[group * len(inner) // groups : (group + 1) * len(inner) // groups]
        if part:
            kept += _extremes(part)
    return [*kept, points[-1]]


def _extremes(part: Sequence[tuple[int, float | None]]) -> list[tuple[int, float | None]]:
    """Return the lowest and the highest point, in their order; a gap counts as the highest."""
    heights = [math.inf if value is None else value for _, value in part]
    low, high = heights.index(min(heights)), heights.index(max(heights))
    return [part[index] for index in sorted({low, high})]


_NO_NUMBER: Final = object()


def _number(value: Any) -> Any:
    """Return a number that a page can draw, None for NaN and infinity, or ``_NO_NUMBER``."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return float(value) if is_number(value) else _NO_NUMBER


def _row(line: bytes) -> dict[str, Any] | None:
    if len(line) > MAX_LINE_CHARS:
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and is_count(row.get("step")) else None


def _ranges(start: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges to read between two offsets, ``MAX_BYTES`` in all."""
    if size - start <= MAX_BYTES:
        yield start, size
        return
    each = (MAX_BYTES - _TAIL_BYTES) // _RANGES
    before_tail = size - _TAIL_BYTES
    for index in range(_RANGES):
        first = start + (before_tail - start) * index // _RANGES
        yield first, first + each
    yield before_tail, size


def _size(path: str) -> int:
    """Return the size of a file in bytes."""
    from fsspec.implementations.local import LocalFileSystem

    from tradewind.storage.client import call_method, file_system_of, translated_client_errors

    with translated_client_errors(path):
        fs, name = file_system_of(path)
        if isinstance(fs, LocalFileSystem):
            with _opened(path, name) as file:
                return os.fstat(file.fileno()).st_size
        fs.invalidate_cache(name)
    return int(call_method(path, "info", name)["size"])


def _read(path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    from fsspec.implementations.local import LocalFileSystem

    from tradewind.storage.client import call_method, file_system_of, translated_client_errors

    with translated_client_errors(path):
        fs, name = file_system_of(path)
        if isinstance(fs, LocalFileSystem):
            with _opened(path, name) as file:
                return [os.pread(file.fileno(), end - start, start) for start, end in ranges]
    starts, ends = zip(*ranges, strict=True)
    found = call_method(path, "cat_ranges", [name] * len(ranges), list(starts), list(ends), on_error="raise")
    return [bytes(data) for data in found]


def _opened(path: str, name: str) -> IO[bytes]:
    file, _ = open_regular(name)
    if isinstance(file, Content):
        raise ValueError(f"{path} cannot be read, because {file.flaw}.")
    return file
