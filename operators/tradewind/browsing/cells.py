"""Values of rows as JSON scalars, cut to a number of characters."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from tradewind.browsing.answers import Scalar
from tradewind.records.parsing import replace_surrogates

MAX_EXACT: Final = 1 << 53
"""Larger whole numbers are no exact numbers in JavaScript."""


class Cell(NamedTuple):
    """A value: what a page shows of it."""

    value: Scalar
    is_cut: bool = False
    is_nested: bool = False


def cell_of(value: Any, max_chars: int) -> Cell:
    """Return ``value`` as a cell; a text is cut at ``max_chars``."""
    if isinstance(value, (dict, list, tuple, Mapping)):
        text = nested_text(value)
        return Cell(text[:max_chars], len(text) > max_chars, is_nested=True)
    if value is None or isinstance(value, bool):
        return Cell(value)
    if isinstance(value, str):
        return _text(value, max_chars)
    if isinstance(value, int):
        return Cell(value) if -MAX_EXACT < value < MAX_EXACT else _text(_digits(value), max_chars)
    if isinstance(value, float):
        return Cell(value) if math.isfinite(value) else Cell(str(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _text(bytes(value[: max_chars * 4]).hex(" "), max_chars) if value else Cell("")
    return _text(str(value), max_chars)


def nested_text(value: Any) -> str:
    """Return a list or an object as JSON."""
    try:
        text = "".join(_encode(value, 0))
    except RecursionError:
        return "[nested too deeply]"
    return text if text.isascii() else replace_surrogates(text)


def whole_text(value: Any) -> tuple[str, str]:
    """Return the kind of a value, as ``WholeValue`` names it, and its text."""
    if value is None:
        return "null", ""
    if isinstance(value, bool):
        return "bool", "true" if value else "false"
    if isinstance(value, str):
        return "text", replace_surrogates(value)
    if isinstance(value, (int, float)):
        return "number", _digits(value) if isinstance(value, int) else repr(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes", base64.b64encode(bytes(value)).decode()
    if isinstance(value, (Mapping, list, tuple)):
        return "json", replace_surrogates(json.dumps(value, ensure_ascii=False, default=_plain, indent=2))
    return "text", replace_surrogates(str(value))


def type_name(value: Any) -> str:
    """Name the type of a JSON value, for columns without a schema."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "text"
    if isinstance(value, (int, float)):
        return "number"
    return "list" if isinstance(value, Sequence) else "object"


def holds(value: Any, wanted: str) -> bool:
    """Whether the text of ``value`` contains ``wanted``, which is in lower case."""
    if value is None:
        return False
    if isinstance(value, str):
        return wanted in value.lower()
    return wanted in (nested_text(value) if isinstance(value, (Mapping, list, tuple)) else str(value)).lower()


def equals(value: Any, wanted: str) -> bool:
    """Whether ``value`` is what ``wanted`` says, in lower case: numbers by their size, others by their text."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return bool(value == float(wanted))
        except ValueError:
            return False
    return value is not None and whole_text(value)[1].lower() == wanted


def _text(text: str, max_chars: int) -> Cell:
    is_cut = len(text) > max_chars
    shown = text[:max_chars] if is_cut else text
    return Cell(shown if shown.isascii() else replace_surrogates(shown), is_cut)


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # Python refuses to convert thousands of digits
        return f"a number of {value.bit_length():,} bits"


def _plain(value: Any) -> str:
    return value.hex(" ") if isinstance(value, (bytes, bytearray)) else str(value)


# ``JSONEncoder.encode`` makes this encoder anew for each value.
_encode: Final[Any] = vars(json.encoder)["c_make_encoder"](
    None, _plain, json.encoder.encode_basestring, None, ": ", ", ", False, True, True
)
