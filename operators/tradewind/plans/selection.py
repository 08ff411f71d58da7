r"""What a user selects for one run: steps to consider and steps to rerun. It is outside every version.

Steps are named by regular expressions, searched anywhere in the step's name, like in Marin's executor. A user who
triggers a run writes them, so the search must take linear time (``linear_regex``).

Python's own engine tries ``(\w+)+$`` in a number of ways that doubles per letter. So Python parses an expression and
decides its meaning, and RE2 searches for it. RE2 has neither lookarounds nor back references. It is loaded with the
first expression, not with this module.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from tradewind.steps import ExperimentError, truncated_repr

MAX_PATTERN_CHARS: Final = 1000
MAX_REGEXES: Final = 1000
_MAX_REGEXES_CHARS: Final = 20_000
_MAX_MEMORY_BYTES: Final = 1 << 20
# In RE2 these mean ASCII only; in Python all of Unicode.
_OUTSIDE_CLASSES: Final = {
    r"\w": r"[\p{L}\p{N}_]",
    r"\W": r"[^\p{L}\p{N}_]",
    r"\d": r"\p{Nd}",
    r"\D": r"\P{Nd}",
    r"\s": r"[\s\v\x1c-\x1f\x85\p{Z}]",
    r"\S": r"[^\s\v\x1c-\x1f\x85\p{Z}]",
    r"\Z": r"\z",
}
_UP_TO = re.compile(r"\{,(\d*)\}")  # plain text in RE2
_INSIDE_CLASSES: Final = {
    r"\w": r"\p{L}\p{N}_",
    r"\d": r"\p{Nd}",
    r"\D": r"\P{Nd}",
    r"\s": r"\s\v\x1c-\x1f\x85\p{Z}",
}


class RegexError(ValueError):
    """The text is not a regular expression, or linear time cannot be guaranteed for it."""


class Regex(Protocol):
    """The part of a compiled expression's interface in use."""

    pattern: str

    def search(self, text: str) -> object | None:
        """Return the first match anywhere in ``text``."""


@lru_cache(maxsize=256)
def linear_regex(text: str) -> Regex:
    """Compile an expression that searches like Python's ``re.search``, in linear time.

    Raises:
        RegexError: It is invalid, or RE2 does not support it; the message is the end of a sentence.
    """
    if len(text) > MAX_PATTERN_CHARS:
        raise RegexError(f"has {len(text)} characters, more than the maximum of {MAX_PATTERN_CHARS}")
    if not text.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise RegexError("is not text: it contains half a character (a lone surrogate)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what later versions of Python may read differently
            re.compile(text)
    except RecursionError:
        raise RegexError("is nested too deeply") from None
    except (re.error, OverflowError) as error:
        raise RegexError(f"is not a regular expression: {error}") from None
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY_BYTES
    try:
        found: Regex = re2.compile("".join(_as_re2(text)), options)
    except re2.error as error:
        cause = error.args[0] if error.args else error
        reason = cause.decode(errors="replace") if isinstance(cause, bytes) else cause
        raise RegexError(
            f"cannot be searched for in linear time ({reason}): write it without lookaheads, lookbehinds, "
            "references back, flags other than i, m and s, and large repeated groups"
        ) from None
    return _LinearPattern(text, found)


class _LinearPattern:
    """An expression shown as the text that was given."""

    def __init__(self, pattern: str, compiled: Regex) -> None:
        self.pattern = pattern
        self._compiled = compiled

    def search(self, text: str) -> object | None:
        try:
            return self._compiled.search(text)
        except UnicodeError:  # half a character, which RE2 cannot read
            return self._compiled.search(text.encode(errors="replace").decode())


def _as_re2(text: str) -> Iterator[str]:
    """Translate the expression to RE2's syntax, part by part."""
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
            yield r"\["  # RE2 would read ``[[:alpha:]]`` as its own class
        elif in_class:
            in_class = part != "]"
            yield _INSIDE_CLASSES.get(part, part)
        else:
            yield _OUTSIDE_CLASSES.get(part, part)


class SelectionError(ExperimentError):
    """A run's selection is invalid."""


@dataclass(frozen=True)
class Selection:
    """What a run makes, beyond its default.

    Attributes:
        run_only: Run these steps and their unfinished inputs; empty means everything.
        force: Rerun these steps even if finished; their finished inputs are still reused.
        force_downstream: Also rerun all steps that read a forced step, at any depth.
        force_run_failed: Rerun steps that failed in an earlier run; otherwise they are BLOCKED.

    Raises:
        SelectionError: An expression is invalid, or linear time cannot be guaranteed for it.
    """

    run_only: tuple[str, ...] = ()
    force: tuple[str, ...] = ()
    force_downstream: bool = False
    force_run_failed: bool = True

    def __post_init__(self) -> None:
        for param in ("run_only", "force"):
            object.__setattr__(self, param, _check_regexes(param, getattr(self, param)))


@dataclass(frozen=True)
class Matches:
    """Result of matching expressions with names.

    Attributes:
        names: The step names that at least one of them matches.
        unused: The expressions that match no name.
    """

    names: frozenset[str]
    unused: tuple[str, ...]


def find_matches(regexes: Sequence[str], names: Iterable[str]) -> Matches:
    """Search every name for every expression."""
    distinct = set(names)
    found = {regex: {name for name in distinct if linear_regex(regex).search(name)} for regex in regexes}
    unused = tuple(regex for regex, matched in found.items() if not matched)
    return Matches(frozenset().union(*found.values()), unused)


def _check_regexes(param: str, regexes: object) -> tuple[str, ...]:
    if not isinstance(regexes, (list, tuple)) or not all(isinstance(regex, str) for regex in regexes):
        raise SelectionError(
            f'{param} must be a list of regular expressions such as ["^train/"], but is {truncated_repr(regexes)}.'
        )
    if len(regexes) > MAX_REGEXES or sum(map(len, regexes)) > _MAX_REGEXES_CHARS:
        raise SelectionError(
            f"{param} holds {len(regexes)} regular expressions: give {MAX_REGEXES} at most, of {_MAX_REGEXES_CHARS} "
            "characters together; one expression can match many steps."
        )
    for regex in regexes:
        try:
            linear_regex(regex)
        except RegexError as error:
            raise SelectionError(f"{param}: {truncated_repr(regex)} {error}.") from None
    return tuple(regexes)
