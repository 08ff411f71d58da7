"""Arrays of a safetensors file: only its header is read."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from tradewind.browsing.access import Access, Stored
from tradewind.browsing.answers import ArrayInfo, Fact
from tradewind.browsing.formats import Details
from tradewind.browsing.limits import MAX_ARRAYS, MAX_FOOTER_BYTES
from tradewind.browsing.refusals import TooLargeError, UnreadableError
from tradewind.text import single_line

_LENGTH_BYTES: Final = 8
_MAX_RANK: Final = 32


def describe(access: Access, stored: Stored) -> Details:
    """Return names, shapes and types of the arrays.

    Raises:
        TooLargeError: The header is too large.
        UnreadableError: It is no safetensors file.
    """
    with access.open(stored.path) as file:
        size = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size > stored.size - _LENGTH_BYTES:
            raise UnreadableError(f"{stored.path} is no safetensors file, or is cut: its header has {size:,} bytes.")
        if size > MAX_FOOTER_BYTES:
            raise TooLargeError(f"{stored.path} has a header of {size:,} bytes; a page reads {MAX_FOOTER_BYTES:,}.")
        head = file.read(size)
    try:
        fields = json.loads(head)
        if not isinstance(fields, dict):
            raise ValueError("no object")
        more = fields.pop("__metadata__", None) or {}
        arrays = [_array(name, value) for name, value in fields.items()]
        facts = [Fact(single_line(name), single_line(value)) for name, value in list(more.items())[:20]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnreadableError(f"{stored.path} has a header that is none: {single_line(error)}.") from None
    return details_of(arrays, facts)


def details_of(arrays: list[ArrayInfo], facts: list[Fact]) -> Details:
    """Return the details of a set of arrays, with their number and the sum of their values."""
    values = sum(math.prod(each.shape) for each in arrays)
    size = sum(each.size for each in arrays)
    counts = [Fact("arrays", f"{len(arrays):,}"), Fact("values", f"{values:,}"), Fact("bytes", f"{size:,}")]
    notes = [] if len(arrays) <= MAX_ARRAYS else [f"{MAX_ARRAYS:,} of {len(arrays):,} arrays are listed."]
    return Details(arrays=arrays[:MAX_ARRAYS], facts=[*counts, *facts], notes=notes)


def _array(name: str, value: Any) -> ArrayInfo:
    begin, end = value["data_offsets"]
    shape = [int(each) for each in value["shape"][:_MAX_RANK]]
    return ArrayInfo(name, shape, str(value["dtype"])[:20], int(end) - int(begin))
