"""Checkpoints of training: names, shapes and types of the arrays, from their metadata only."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tradewind.browsing.access import Access, Stored
from tradewind.browsing.answers import ArrayInfo, Fact
from tradewind.browsing.arrays import opened_store
from tradewind.browsing.formats import Details
from tradewind.browsing.limits import MAX_ARRAYS
from tradewind.browsing.memory import loading
from tradewind.browsing.refusals import BrowsingError, TooLargeError, UnreadableError
from tradewind.browsing.safetensors import details_of
from tradewind.datasets.files import join
from tradewind.storage import Location
from tradewind.text import single_line

_METADATA: Final = "metadata.json"
_ENDINGS: Final = ("/zarr.json", "/.zarray")
_MAX_METADATA_BYTES: Final = 1 << 20
_AT_ONCE: Final = 64
_MAX_FILES: Final = 2_000
"""Files of a checkpoint on a disk, which are open at a time."""


def describe(access: Access, stored: Stored) -> Details:
    """Return the arrays of a checkpoint and its metadata.

    Raises:
        OutsideError: A file of it is a link that leads outside.
        UnreadableError: It is damaged.
    """
    try:
        facts = _metadata(access, join(stored.path, _METADATA))
    except BrowsingError as error:
        facts = [Fact(_METADATA, single_line(error))]
    with opened_store(access, stored.path, _names_in(stored.path)) as base:
        details = details_of(*_arrays(access, stored.path, base))
    details.facts[:0] = facts
    return details


def _names_in(folder: str) -> Iterator[str]:
    """Yield the files below a folder of a disk, relative to it; the walk follows no link to a folder.

    Raises:
        TooLargeError: They are too many.
    """
    top, count = Location.of(folder).name, 0
    for above, _, files in os.walk(top):
        for name in files:
            count += 1
            if count > _MAX_FILES:
                raise TooLargeError(f"{folder} has more than {_MAX_FILES:,} files, so its arrays are not listed.")
            yield os.path.relpath(os.path.join(above, name), top)


def _metadata(access: Access, path: str) -> list[Fact]:
    with access.open(path) as file:
        data = file.read(_MAX_METADATA_BYTES + 1)
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return [Fact(_METADATA, "is no JSON object")]
    return [Fact(single_line(name), single_line(value)) for name, value in list(fields.items())[:20]]


def _arrays(access: Access, folder: str, base: Mapping[str, Any]) -> tuple[list[ArrayInfo], list[Fact]]:
    with loading():
        import tensorstore

    def wait(future: Any) -> Any:
        return future.result(timeout=max(access.left_s, 0.1))

    try:
        with loading():
            store = wait(tensorstore.KvStore.open({"driver": "ocdbt", "base": base}))
            found = wait(store.list())
        keys = [key.decode("utf-8", "replace") for key in found]
        wanted = sorted(key for key in keys if key.endswith(_ENDINGS))
        more = [Fact("arrays in all", f"{len(wanted):,}")] if len(wanted) > MAX_ARRAYS else []
        arrays: list[ArrayInfo] = []
        for begin in range(0, min(len(wanted), MAX_ARRAYS), _AT_ONCE):
            some = wanted[begin : min(begin + _AT_ONCE, MAX_ARRAYS)]
            futures = [store.read(key) for key in some]
            for key, future in zip(some, futures, strict=True):
                arrays.append(_array(key.rpartition("/")[0], wait(future).value))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableError(f"{folder} has a list of arrays that cannot be read: {single_line(error)}.") from None
    return arrays, more


def _array(name: str, metadata: bytes) -> ArrayInfo:
    import numpy as np

    fields = json.loads(metadata[:_MAX_METADATA_BYTES])
    shape = [int(each) for each in fields["shape"]]
    kind = str(fields.get("data_type") or fields.get("dtype"))
    try:
        size = np.dtype("uint16" if kind == "bfloat16" else kind).itemsize
    except TypeError:
        size = 0
    return ArrayInfo(name, shape, kind, math.prod(shape) * size)
