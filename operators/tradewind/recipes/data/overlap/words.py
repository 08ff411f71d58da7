"""Words of texts as numbers, so that runs of words can be compared: what counts as a word, and as the same word.

A word is a run of letters and digits, with the marks and invisible characters between them; all else separates words.
In scripts without spaces (Chinese, Japanese, Thai, …) each character is a word. Words are the same if they are so in
form NFKC, in lower case (``str.casefold``) and without invisible characters: ``Straße`` and ``STRASSE`` are.
"""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, Final

ALGORITHM: Final = 1
"""Counts in the versions of steps: raise it with each change of what a word is, or of a hash."""
_ASCII_WORDS: Final = re.compile("[A-Za-z0-9]+")
_PLAIN_WORDS: Final = re.compile(r"[^\W_]+")
_UNSPACED: Final = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF),
    (0xFF66, 0xFF9D), (0x20000, 0x3FFFF),
)  # fmt: skip
"""Thai and Lao, Burmese, Khmer, kana, Han."""
_HALF_WIDTH_MARKS: Final = (0xFF9E, 0xFF9F)
"""Marks of half-width kana, which Unicode has as letters."""
_ZERO_WIDTH_SPACE: Final = 0x200B
_MAX_CACHED: Final = 500_000
_MAX_CACHED_CHARS: Final = 64
_MAX_LISTED: Final = 1 << 20
"""Characters of a text whose words are in memory at once."""
_FACTOR: Final = 0x9E3779B97F4A7C15


def word_hashes(text: str) -> Any:
    """Return the 64-bit hashes of the words of a text, an array of numpy."""
    import numpy as np

    pattern = _pattern(text)
    if len(text) <= _MAX_LISTED:
        words: Iterable[str] = pattern.findall(text)
    else:
        words = (match[0] for match in pattern.finditer(text))
    known = _known()
    if len(known) > _MAX_CACHED:
        known.clear()
    return np.fromiter(map(known.__getitem__, words), np.uint64)


def word_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each word."""
    return (match.span() for match in _pattern(text).finditer(text))


def run_spans(text: str, places: Any, length: int) -> list[list[int]]:
    """Return begin and end of the parts of a text that runs of ``length`` words cover, which begin at these words."""
    runs: list[list[int]] = []
    for place in places.tolist():
        if runs and place <= runs[-1][1]:
            runs[-1][1] = place + length - 1
        else:
            runs.append([place, place + length - 1])
    spans: list[list[int]] = []
    waiting = iter(runs)
    first, last = next(waiting, (-1, -1))
    for at, (begin, end) in enumerate(word_spans(text)):
        if at == first:
            spans.append([begin, end])
        if at == last:
            spans[-1][1] = end
            first, last = next(waiting, (-1, -1))
            if last < 0:
                break
    return spans


def ngram_hashes(words: Any, length: int) -> Any:
    """Return a hash of each run of ``length`` words: a polynomial of the words' hashes, modulo 2^64."""
    import numpy as np

    count = max(len(words) - length + 1, 0)
    hashes = words[:count].copy()
    for at in range(1, length):
        hashes *= np.uint64(_FACTOR)
        hashes += words[at : at + count]
    return hashes


class _Words(dict[str, int]):
    """Hashes of words as texts have them."""

    def __missing__(self, word: str) -> int:
        plain = word.lower() if word.isascii() else _plain(word)
        digest = hashlib.blake2b(plain.encode("utf-8", "replace"), digest_size=8).digest()
        found = int.from_bytes(digest, "little")
        if len(word) <= _MAX_CACHED_CHARS:
            self[word] = found
        return found


@functools.cache
def _known() -> _Words:
    """Return the words of this process so far; a value of the module would count in the keys of stages."""
    return _Words()


def _pattern(text: str) -> re.Pattern[str]:
    if text.isascii():
        return _ASCII_WORDS
    special, words, _ = _patterns()
    return words if special.search(text) else _PLAIN_WORDS


def _plain(word: str) -> str:
    composed = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", word).casefold())
    return _patterns()[2].sub("", composed)


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Return what finds characters beside letters and digits that words may have, words with these, and invisible ones.

    Marks beyond the first 65,536 characters, which few scripts have, separate words: they would slow down all texts.
    """
    marks, invisible = [*_HALF_WIDTH_MARKS], []
    for code in (*range(0x10000), *range(0xE0000, 0xE0200)):
        kind = unicodedata.category(chr(code))
        if kind == "Cf" and code != _ZERO_WIDTH_SPACE:
            invisible.append(code)
        elif kind[0] == "M":
            marks.append(code)
    after = _class([*marks, *invisible])
    alone = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in _UNSPACED)
    words = f"(?=[{alone}])[^\\W_][{after}]*+|(?:[^\\W_{alone}]++[{after}]*+)++"
    return re.compile(f"[{alone}{after}]"), re.compile(words), re.compile(f"[{_class(invisible)}]")


def _class(codes: Iterable[int]) -> str:
    """Return ranges of characters for a class of a regular expression."""
    ranges: list[list[int]] = []
    for code in sorted(codes):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)
