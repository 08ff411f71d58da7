"""Check a file of fastText before fastText reads it, which crashes over a bad one, or takes all memory.

The file has a head, a dictionary of words and labels, and two matrices, each with its size; all numbers are in the
order of bytes of x86. A quantized matrix is only bounded here: ``fasttext_models.check`` loads it.
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
_MATRIX: Final = struct.Struct("<? 2q")
_AFTER_WORD: Final = 9
"""Bytes after the text of an entry and its zero: a count, and whether it is a label."""
_MAX_DIM: Final = 100_000
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
        magic, version, dim, model, bucket = head[0], head[1], head[2], head[9], head[10]
        entries, words, labels, _, pruned = head[15:]
        if magic != _MAGIC or version not in _VERSIONS:
            raise ValueError("it does not begin like a model of fastText 0.2 or later")
        if model != _SUPERVISED:
            raise ValueError("it is a model of word vectors, and has no labels")
        if not (0 < dim <= _MAX_DIM and 0 < labels <= _MAX_LABELS and words >= 0 and bucket >= 0 and pruned >= -1):
            raise ValueError("its head has impossible sizes")
        if entries != words + labels or entries * (_AFTER_WORD + 1) > size:
            raise ValueError("its dictionary is cut")
        names, place = _dictionary(content, entries, words)
        _check_matrices(content, place + 8 * max(pruned, 0), dim, (words + bucket, labels), pruned >= 0)
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


def _check_matrices(content: Any, place: int, dim: int, expected: tuple[int, int], is_pruned: bool) -> None:
    """Check the sizes of both matrices, and that the file ends after the last if none is quantized."""
    for rows in expected:
        if place + _MATRIX.size > len(content):
            raise ValueError("its matrices are cut")
        is_quantized, found_rows, found_dim = _MATRIX.unpack_from(content, place)
        if is_quantized:
            return
        if found_dim != dim or (found_rows != rows and not is_pruned):
            raise ValueError(f"a matrix has {found_rows:,} × {found_dim:,} numbers, and not {rows:,} × {dim:,}")
        place += _MATRIX.size + 4 * found_rows * found_dim
    if place != len(content):
        raise ValueError(f"it has {len(content):,} bytes, and its sizes make {place:,}")
