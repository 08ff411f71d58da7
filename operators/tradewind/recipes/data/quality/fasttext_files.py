"""Check a file of fastText before fastText reads it, which crashes over a bad one, or takes all memory.

The file has a head, a dictionary of words and labels, and two matrices, each with its size; all numbers are in the
order of bytes of x86. fastText reads a file that is cut as if zeros followed, if it does not crash.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Any, Final

_MAGIC: Final = 793_712_314
_VERSIONS: Final = (11, 12)
_SUPERVISED: Final = 3
_HEAD: Final = struct.Struct("<14i d 3i 2q")
_AFTER_WORD: Final = 9
"""Bytes after the text of an entry and its zero: a count, and whether it is a label."""
_MAX_DIM: Final = 100_000
_MAX_RUN: Final = 20
"""Of words or characters, of which each text makes as many as it has words or characters, times their length."""
_MAX_LABELS: Final = 100_000
_MAX_LABEL_BYTES: Final = 1_000


def read_labels(file: str) -> list[str]:
    """Return the labels of a local file, with fastText's prefix, in their order.

    Raises:
        ValueError: It is no supervised model, or its sizes contradict each other.
    """
    size = os.path.getsize(file)
    if size <= _HEAD.size:
        raise ValueError(f"it has {size:,} bytes, fewer than a model")
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        head = _HEAD.unpack_from(content)
        magic, version, dim, runs, model, bucket, longest = (head[at] for at in (0, 1, 2, 7, 9, 10, 12))
        entries, words, labels, _, pruned = head[15:]
        if magic != _MAGIC or version not in _VERSIONS:
            raise ValueError("it does not begin like a model of fastText 0.2 or later")
        if model != _SUPERVISED:
            raise ValueError("it is a model of word vectors, and has no labels")
        if not (0 < dim <= _MAX_DIM and 0 < labels <= _MAX_LABELS and words >= 0 and bucket >= 0 and pruned >= -1):
            raise ValueError("its head has impossible sizes")
        if runs > _MAX_RUN or longest > _MAX_RUN:
            raise ValueError(
                f"its head has runs of {max(runs, longest):,} words or characters, and not up to {_MAX_RUN}"
            )
        if not bucket and (runs > 1 or longest > 0):
            raise ValueError("its head has parts of words and no buckets for them")
        if entries != words + labels or entries * (_AFTER_WORD + 1) + 8 * pruned > size:
            raise ValueError("its dictionary is cut")
        names, place = _dictionary(content, entries, words)
        _check_pruned(content[place : place + 8 * max(pruned, 0)], pruned)
        rows = words + (bucket if pruned < 0 else pruned)
        _Matrices(content, place + 8 * max(pruned, 0), dim).check(rows, labels)
    return names


def _dictionary(content: mmap.mmap, entries: int, words: int) -> tuple[list[str], int]:
    """Return the labels, which follow the words, and the place after the dictionary."""
    labels: list[str] = []
    place = _HEAD.size
    for number in range(entries):
        end = content.find(b"\0", place)
        if end < 0 or end + _AFTER_WORD >= len(content):
            raise ValueError("its dictionary is cut")
        is_label = content[end + _AFTER_WORD]
        if is_label != (number >= words):
            raise ValueError("its dictionary has words among its labels")
        if is_label:
            try:
                labels.append(content[place : min(end, place + _MAX_LABEL_BYTES)].decode())
            except UnicodeDecodeError:
                raise ValueError("a label is no text (not UTF-8)") from None
        place = end + 1 + _AFTER_WORD
    if len(set(labels)) < len(labels):
        raise ValueError("it has a label twice")
    return labels, place


def _check_pruned(pairs: bytes, pruned: int) -> None:
    """Check the places of the parts of words that a quantization kept."""
    if len(pairs) % 8 or any(not 0 <= place < pruned for _, place in struct.iter_unpack("<2i", pairs)):
        raise ValueError("its dictionary names parts of words that do not exist")


class _Matrices:
    """Reads the two matrices, which begin at ``place``: for words and their parts, and for labels."""

    def __init__(self, content: mmap.mmap, place: int, dim: int) -> None:
        self._content = content
        self._place = place
        self._dim = dim

    def check(self, rows: int, labels: int) -> None:
        """Check the sizes of both, and that the file ends after them."""
        is_quantized = self._matrix(rows)
        self._matrix(labels, may_be_quantized=is_quantized)
        if self._place != len(self._content):
            raise ValueError(f"it has {len(self._content):,} bytes, and its sizes make {self._place:,}")

    def _matrix(self, rows: int, *, may_be_quantized: bool = True) -> bool:
        (is_quantized,) = self._read("<?")
        is_quantized = is_quantized and may_be_quantized
        has_norms = is_quantized and self._read("<?")[0]
        found = self._read("<2q")
        if found != (rows, self._dim):
            raise ValueError(f"a matrix has {found[0]:,} × {found[1]:,} numbers, and not {rows:,} × {self._dim:,}")
        if not is_quantized:
            self._place += 4 * rows * self._dim
            return False
        (codes,) = self._read("<i")
        self._place += codes
        if codes != rows * self._codebook(self._dim):
            raise ValueError(f"a matrix of {rows:,} rows has {codes:,} codes")
        if has_norms:
            self._place += rows
            self._codebook(1)
        return True

    def _codebook(self, dim: int) -> int:
        """Read the parts into which rows are cut, and return how many there are."""
        found_dim, parts, size, last = self._read("<4i")
        if found_dim != dim or size < 1 or parts != -(-dim // size) or last != (dim % size or size):
            raise ValueError("a matrix has an impossible codebook")
        self._place += 4 * 256 * dim
        return int(parts)

    def _read(self, form: str) -> tuple[Any, ...]:
        size = struct.calcsize(form)
        if self._place + size > len(self._content):
            raise ValueError("its matrices are cut")
        self._place += size
        return struct.unpack_from(form, self._content, self._place - size)
