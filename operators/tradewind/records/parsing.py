"""Parsing of records, which are untrusted input: a table gives the type of each field.

Any process with write access to the bucket may have written a record, and a disk may hold half of one. So the parser
limits the depth of the JSON, checks each field that it reads, and ignores fields that no table names. An error is a
phrase that follows "because". It names the field and its type, never the value.

This is plain code instead of a library, since each driver loads it once per step. Pydantic takes about as long to load
as the rest of a driver, jsonschema two thirds of that, and each cluster would need both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tradewind.storage.bounded_read import value_count

MAX_DEPTH: Final = 200
"""Maximum nesting of the lists and objects of a record."""
_MAX_VALUES: Final = 1 << 23
"""Maximum values of a record: a manifest of two million files."""
MAX_COUNT: Final = 10**15
LATEST: Final = 1e11
"""Latest time in seconds since 1970, within the range of calendars."""
MAX_NUMBER: Final = 1e300
"""Largest number that arithmetic still handles."""


class RecordFormatError(ValueError):
    """Why a text is not a valid record, in words that follow "because"."""


@dataclass(frozen=True)
class FieldType:
    """Type of a field.

    Attributes:
        fits: Whether a value is of this type.
        name: Name of the type in messages: "a number".
    """

    fits: Callable[[Any], bool]
    name: str

    def or_null(self) -> FieldType:
        """Return this type extended by null."""
        return FieldType(lambda value: value is None or self.fits(value), f"{self.name} or null")


def parse(text: str) -> Any:
    """Return the JSON value in ``text``.

    Raises:
        RecordFormatError: The text is not JSON, is nested too deeply, or has too many values.
    """
    if not text.strip():
        raise RecordFormatError("it is empty")
    if value_count(text) > _MAX_VALUES:
        raise RecordFormatError(f"it holds more than {_MAX_VALUES:,} values")
    try:
        value = json.loads(text)
    except RecursionError:
        raise RecordFormatError("it is nested too deeply") from None
    except ValueError:
        raise RecordFormatError("it holds no JSON, or only the beginning of one") from None
    if _is_deep(value):
        raise RecordFormatError("it is nested too deeply")
    return value


def parse_object(text: str) -> dict[str, Any]:
    """Return the JSON object in ``text``.

    Raises:
        RecordFormatError: The text is not a JSON object.
    """
    return as_object(parse(text))


def as_object(value: Any) -> dict[str, Any]:
    """Return a parsed value that should be an object.

    Raises:
        RecordFormatError: The value is not an object.
    """
    if not isinstance(value, dict):
        raise RecordFormatError("it holds no JSON object")
    return value


def parse_fields(
    value: Any, kinds: Mapping[str, FieldType], required: Iterable[str] = (), whose: str = "its"
) -> dict[str, Any]:
    """Return the fields of an object that ``kinds`` names, and ignore others, which a later version may have written.

    Raises:
        RecordFormatError: A field is of another type, or one of ``required`` is missing.
    """
    fields = as_object(value)
    for name in required:
        if name not in fields:
            raise RecordFormatError(f"{whose} {name} is missing")
    known = {name: fields[name] for name in kinds if name in fields}
    for name, content in known.items():
        if not kinds[name].fits(content):
            raise RecordFormatError(f"{whose} {name} is not {kinds[name].name}")
    return known


def one_of(values: Iterable[str]) -> FieldType:
    """Return the type of these words."""
    words = frozenset(values)
    return FieldType(lambda value: isinstance(value, str) and value in words, f"one of {', '.join(sorted(words))}")


def list_of(kind: FieldType) -> FieldType:
    """Return the type of lists of this type."""
    return FieldType(lambda value: isinstance(value, list) and all(map(kind.fits, value)), f"a list, each {kind.name}")


def object_of(kind: FieldType) -> FieldType:
    """Return the type of objects whose values are of this type."""
    return FieldType(
        lambda value: isinstance(value, dict) and all(map(is_text, value)) and all(map(kind.fits, value.values())),
        f"an object, each value {kind.name}",
    )


def is_text(value: Any) -> bool:
    """Whether ``value`` is text that can be encoded: a lone surrogate, half of a character, cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_count(value: Any) -> bool:
    """Whether ``value`` is a whole number from 0 to ``MAX_COUNT``."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def is_number(value: Any) -> bool:
    """Whether ``value`` is a number for arithmetic: not NaN, not infinite."""
    has_type = isinstance(value, (int, float)) and not isinstance(value, bool)
    return has_type and abs(value) <= MAX_NUMBER


def is_relative(path: str) -> bool:
    """Whether ``path`` leads to a file or folder below its start."""
    parts = path.split("/")
    return "\0" not in path and not {"", ".", ".."}.intersection(parts)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for each in level
            if isinstance(each, (dict, list))
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return False
    return True


TEXT: Final = FieldType(is_text, "text")
RAW_TEXT: Final = FieldType(lambda value: isinstance(value, str), "text")
"""Text of another program, such as an error, that may hold lone surrogates: see ``replace_surrogates``."""
COUNT: Final = FieldType(is_count, "a whole number from 0 on")
NUMBER: Final = FieldType(is_number, "a number")
FLAG: Final = FieldType(lambda value: isinstance(value, bool), "true or false")
ANYTHING: Final = FieldType(lambda value: True, "anything")
OBJECT: Final = FieldType(lambda value: isinstance(value, dict), "an object")
RELATIVE_PATH: Final = FieldType(lambda value: isinstance(value, str) and is_relative(value), "a path below the output")
"""File names may hold lone surrogates, as names on local disks do that are not UTF-8."""
MOMENT: Final = FieldType(lambda value: is_number(value) and 0 <= value <= LATEST, "a time in seconds since 1970")


def replace_surrogates(text: str) -> str:
    """Return ``text`` with a question mark instead of each lone surrogate, so that it can be encoded."""
    return text.encode(errors="replace").decode()
