"""The filters of Compute Engine's lists, as Google describes them: ``(labels.a = b) AND (NOT labels.c:*)``.

Served are comparisons by ``=``, ``!=`` and ``:``, joined by AND, OR, NOT and brackets; side by side, it is AND.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

Test = Callable[[Mapping[str, Any]], bool]

_TOKEN: Final = re.compile(r'\s*(?:([()])|(AND|OR|NOT)\b|([\w.\-]+)\s*(!=|=|:|eq\b|ne\b)\s*("[^"]*"|[^\s()]+))')


class BadFilterError(ValueError):
    """A filter cannot be read."""


def parse_filter(text: str) -> Test:
    """What a list is filtered by; an empty text lets everything through.

    Raises:
        BadFilterError: It cannot be read.
    """
    tokens, at = [], 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None:
            raise BadFilterError(f"Invalid list filter expression: {text[at:]!r}")
        tokens.append(found.groups())
        at = found.end()
    if not tokens:
        return lambda fields: True
    parser = _FilterParser(tokens)
    test = parser.any_of()
    if parser.tokens:
        raise BadFilterError(f"Invalid list filter expression: {text!r}")
    return test


class _FilterParser:
    """Takes the tokens of one filter, the next first."""

    def __init__(self, tokens: list[tuple[str, ...]]) -> None:
        self.tokens = tokens

    def any_of(self) -> Test:
        tests = [self._all_of()]
        while self._takes_word("OR"):
            tests.append(self._all_of())
        return lambda fields: any(test(fields) for test in tests)

    def _all_of(self) -> Test:
        tests = [self._one()]
        while self._takes_word("AND") or (self.tokens and self.tokens[0][0] != ")" and self.tokens[0][1] != "OR"):
            tests.append(self._one())
        return lambda fields: all(test(fields) for test in tests)

    def _one(self) -> Test:
        if self._takes_word("NOT"):
            refused = self._one()
            return lambda fields: not refused(fields)
        if not self.tokens:
            raise BadFilterError("Invalid list filter expression: it ends too early")
        bracket, word, field, operator, value = self.tokens.pop(0)
        if bracket == "(":
            inner = self.any_of()
            if not self.tokens or self.tokens.pop(0)[0] != ")":
                raise BadFilterError("Invalid list filter expression: a bracket is not closed")
            return inner
        if bracket or word:
            raise BadFilterError(f"Invalid list filter expression: {bracket or word!r} is out of place")
        return _comparison(field, operator, value.strip('"'))

    def _takes_word(self, word: str) -> bool:
        if self.tokens and self.tokens[0][1] == word:
            self.tokens.pop(0)
            return True
        return False


def _comparison(field: str, operator: str, value: str) -> Test:
    def there(fields: Mapping[str, Any]) -> str | None:
        first, _, rest = field.partition(".")
        found = fields.get(first)
        if rest:
            found = found.get(rest) if isinstance(found, Mapping) else None
        return None if found is None else str(found)

    match operator:
        case "=" | "eq":
            return lambda fields: there(fields) == value
        case "!=" | "ne":
            return lambda fields: there(fields) != value
        case _ if value == "*":
            return lambda fields: there(fields) is not None
    return lambda fields: value in (there(fields) or "")
