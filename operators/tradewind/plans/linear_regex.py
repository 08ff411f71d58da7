"""Regular expressions from outside take time in proportion to what they search, whatever they say.

Python's own engine tries ``(\\w+)+$`` in a number of ways that doubles with every letter. So an expression is read by
Python, which decides what it means, and searched for by RE2, which has no such expressions: it knows neither
lookarounds nor references back. RE2 is loaded with the first expression, not with this module.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, Protocol

LONGEST: Final = 1000
_MOST_MEMORY_BYTES: Final = 1 << 20
# RE2 means only ASCII by these; Python means all of Unicode.
_OUTSIDE_CLASSES: Final = {
    r"\w": r"[\p{L}\p{N}_]",
    r"\W": r"[^\p{L}\p{N}_]",
    r"\d": r"\p{Nd}",
    r"\D": r"\P{Nd}",
    r"\s": r"[\s\v\x1c-\x1f\x85\p{Z}]",
    r"\S": r"[^\s\v\x1c-\x1f\x85\p{Z}]",
    r"\Z": r"\z",
}
_UP_TO = re.compile(r"\{,(\d*)\}")  # for RE2 it is plain text
_INSIDE_CLASSES: Final = {
    r"\w": r"\p{L}\p{N}_",
    r"\d": r"\p{Nd}",
    r"\D": r"\P{Nd}",
    r"\s": r"\s\v\x1c-\x1f\x85\p{Z}",
}


class RegexError(ValueError):
    """A text is no regular expression, or one that cannot be searched for in linear time."""


class Regex(Protocol):
    """What is used of a compiled expression."""

    pattern: str

    def search(self, text: str) -> object | None:
        """What it finds first, anywhere in ``text``."""


@lru_cache(maxsize=256)
def linear_regex(text: str) -> Regex:
    """The expression, to be searched for as Python's ``re.search`` does.

    Raises:
        RegexError: It is none, or one that RE2 does not take; the message is the end of a sentence.
    """
    if len(text) > LONGEST:
        raise RegexError(f"has {len(text)} characters, and at most {LONGEST} are read")
    if not text.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise RegexError("is no text: it holds half a character (a lone surrogate)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what later versions of Python may read otherwise
            re.compile(text)
    except RecursionError:
        raise RegexError("is nested too deeply") from None
    except (re.error, OverflowError) as error:
        raise RegexError(f"is not a regular expression: {error}") from None
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_MEMORY_BYTES
    try:
        found: Regex = re2.compile("".join(_as_re2(text)), options)
    except re2.error as error:
        raise RegexError(
            f"cannot be searched for in linear time ({_words(error)}): write it without lookaheads, lookbehinds, "
            "references back, flags other than i, m and s, and large repeated groups"
        ) from None
    return _LinearPattern(text, found)


class _LinearPattern:
    """An expression that goes by the text that was given."""

    def __init__(self, pattern: str, compiled: Regex) -> None:
        self.pattern = pattern
        self._compiled = compiled

    def search(self, text: str) -> object | None:
        try:
            return self._compiled.search(text)
        except UnicodeError:  # half a character, which RE2 cannot read
            return self._compiled.search(text.encode(errors="replace").decode())


def _as_re2(text: str) -> Iterator[str]:
    """The expression in RE2's words, part by part."""
    in_class, position = False, 0
    while position < len(text):
        if not in_class and (up_to := _UP_TO.match(text, position)):
            position = up_to.end()
            yield f"{{0,{up_to[1]}}}"
            continue
        part = text[position : position + (2 if text[position] == "\\" else 1)]
        position += len(part)
        if not in_class and part == "[":
            in_class = True
            opening = "^" if text.startswith("^", position) else ""
            opening += "]" if text.startswith("]", position + len(opening)) else ""
            position += len(opening)
            yield "[" + opening.replace("]", r"\]")
        elif in_class and part == "[":
            yield r"\["  # RE2 would take ``[[:alpha:]]`` for a class of its own
        elif in_class:
            in_class = part != "]"
            yield _INSIDE_CLASSES.get(part, part)
        else:
            yield _OUTSIDE_CLASSES.get(part, part)


def _words(error: Exception) -> str:
    said = error.args[0] if error.args else error
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
