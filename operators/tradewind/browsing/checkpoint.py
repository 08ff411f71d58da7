"""Checkpoints of training: names, shapes and types of the arrays, from their metadata only."""

from __future__ import annotations

import json
import math
import os
from typing import Any, Final

from tradewind.browsing.access import Access, Stored
from tradewind.browsing.answers import ArrayInfo, Fact
from tradewind.browsing.arrays import kvstore_of
from tradewind.browsing.formats import Details
from tradewind.browsing.limits import MAX_ARRAYS
from tradewind.browsing.memory import loading
from tradewind.browsing.refusals import BrowsingError, OutsideError, UnreadableError
from tradewind.browsing.safetensors import details_of
from tradewind.datasets.files import is_remote, join
from tradewind.storage import Location
from tradewind.text import single_line

_METADATA: Final = "metadata.json"
_ENDINGS: Final = ("/zarr.json", "/.zarray")
_MAX_METADATA_BYTES: Final = 1 << 20
_AT_ONCE: Final = 64


def describe(access: Access, stored: Stored) -> Details:
    """Return the arrays of a checkpoint and its metadata.

    Raises:
        OutsideError: A file of it is a link.
        UnreadableError: It is damaged.
    """
    try:
        facts = _metadata(access, join(stored.path, _METADATA))
    except BrowsingError as error:
        facts = [Fact(_METADATA, single_line(error))]
    _refuse_links(access, stored.path)
    details = details_of(*_arrays(access, stored.path))
    details.facts[:0] = facts
    return details


def _refuse_links(access: Access, folder: str) -> None:
    """Refuse a local folder with links: tensorstore opens its files itself, and would follow them out of the roots."""
    if access.roots is None or is_remote(folder):
        return
    for above, folders, files in os.walk(Location.of(folder).name):
        link = next((name for name in (*folders, *files) if os.path.islink(os.path.join(above, name))), None)
        if link is not None:
            raise OutsideError(f"{os.path.join(above, link)} is a link, and pages read checkpoints without links only.")
        if access.left_s < 0:
            raise UnreadableError(f"{folder} has too many files to look for links in the time of one request.")


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


def _arrays(access: Access, folder: str) -> tuple[list[ArrayInfo], list[Fact]]:
    with loading():
        import tensorstore

    def wait(future: Any) -> Any:
        return future.result(timeout=max(access.left_s, 0.1))

    try:
        with loading():
            store = wait(tensorstore.KvStore.open({"driver": "ocdbt", "base": kvstore_of(folder)}))
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
