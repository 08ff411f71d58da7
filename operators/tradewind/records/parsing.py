"""Records are input: what each field may hold is said in a table, and what does not fit has a flaw.

Anybody who may write the bucket may have written a record, and a disk may hold half of one. So the JSON is parsed with
a bound on its depth, each field that is read is checked first, and nothing is taken over that no table names. A flaw is
a phrase that follows "because"; it names the field and the kind of value that belongs there, never the value itself.

Plain code instead of a library, since this is loaded by every keeper, once per step: pydantic takes about as long to
load as all the rest of a keeper, jsonschema two thirds of that, and both would have to be on every cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

MAX_DEPTH: Final = 200
"""How deep the lists and objects of a record may lie in each other."""
MAX_COUNT: Final = 10**15
LATEST: Final = 1e11
"""In seconds since 1970, of what calendars reach to."""
MAX_NUMBER: Final = 1e300
"""Of what can still be counted in."""


class RecordFormatError(ValueError):
    """Why a text is no record, in words that follow "because"."""


@dataclass(frozen=True)
class FieldType:
    """What a field may hold.

    Attributes:
        fits: Whether a value is of this kind.
        name: What to call it: "a number".
    """

    fits: Callable[[Any], bool]
    name: str

    def or_null(self) -> FieldType:
        """The same, or nothing."""
        return FieldType(lambda value: value is None or self.fits(value), f"{self.name} or null")


def parse(text: str) -> Any:
    """The JSON in ``text``.

    Raises:
        RecordFormatError: There is none, or it is too deep to be handled.
    """
    if not text.strip():
        raise RecordFormatError("it is empty")
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
    """The JSON object in ``text``.

    Raises:
        RecordFormatError: There is none.
    """
    return as_object(parse(text))


def as_object(value: Any) -> dict[str, Any]:
    """A parsed value that should be an object.

    Raises:
        RecordFormatError: It is none.
    """
    if not isinstance(value, dict):
        raise RecordFormatError("it holds no JSON object")
    return value


def parse_fields(
    value: Any, kinds: Mapping[str, FieldType], required: Iterable[str] = (), whose: str = "its"
) -> dict[str, Any]:
    """The fields of an object that ``kinds`` names, all of which fit; others, of a later version, are passed over.

    Raises:
        RecordFormatError: One does not fit, or one of ``required`` is missing.
    """
    fields = as_object(value)
    for name in required:
        if name not in fields:
            raise RecordFormatError(f"{whose} {name} is missing")
    known = {name: fields[name] for name in kinds if name in fields}
    for name, each in known.items():
        if not kinds[name].fits(each):
            raise RecordFormatError(f"{whose} {name} is not {kinds[name].name}")
    return known


def one_of(values: Iterable[str]) -> FieldType:
    """One of these words."""
    words = frozenset(values)
    return FieldType(lambda value: isinstance(value, str) and value in words, f"one of {', '.join(sorted(words))}")


def list_of(kind: FieldType) -> FieldType:
    """A list, each item of which is of this kind."""
    return FieldType(lambda value: isinstance(value, list) and all(map(kind.fits, value)), f"a list, each {kind.name}")


def object_of(kind: FieldType) -> FieldType:
    """An object, each value of which is of this kind."""
    return FieldType(
        lambda value: isinstance(value, dict) and all(map(is_text, value)) and all(map(kind.fits, value.values())),
        f"an object, each value {kind.name}",
    )


def is_text(value: Any) -> bool:
    """Whether it is text that can be written and shown: half of a character (a lone surrogate) cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_count(value: Any) -> bool:
    """Whether it is a whole number from 0 on that something could have been counted to."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def is_number(value: Any) -> bool:
    """Whether it is a number that can be counted in: no NaN, no infinity."""
    is_one = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_one and abs(value) <= MAX_NUMBER


def is_relative(path: str) -> bool:
    """Whether ``path`` leads to something below where it starts."""
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
"""Text of somebody else's, such as an error's, that may hold halves of characters: see ``replace_surrogates``."""
COUNT: Final = FieldType(is_count, "a whole number from 0 on")
NUMBER: Final = FieldType(is_number, "a number")
FLAG: Final = FieldType(lambda value: isinstance(value, bool), "true or false")
ANYTHING: Final = FieldType(lambda value: True, "anything")
OBJECT: Final = FieldType(lambda value: isinstance(value, dict), "an object")
RELATIVE_PATH: Final = FieldType(lambda value: isinstance(value, str) and is_relative(value), "a path below the output")
"""File names may hold halves of characters, as those of local disks do that are no UTF-8."""
MOMENT: Final = FieldType(lambda value: is_number(value) and 0 <= value <= LATEST, "a time in seconds since 1970")


def replace_surrogates(text: str) -> str:
    """``text`` with a mark in place of each half of a character, so that it can be written and shown."""
    return text.encode(errors="replace").decode()
