"""Heuristic rules on the quality of a web page's text: those of Gopher, C4 and FineWeb, and its length.

A rule has thresholds as fields, and measures a text; ``Rule.apply`` names the first measure out of its bounds.

    GopherQuality(min_words=20).apply("A short text.").failed  # "words"

White space separates words, so a text without any, such as Chinese, is one word to these rules.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from operator import add, ne, sub
from typing import Any, ClassVar, Final, NamedTuple

from tradewind.steps.amounts import MAX_AMOUNT
from tradewind.steps.fields import FLAG, TEXT, FieldRule, check_fields, integer, number
from tradewind.text import truncated_repr

_STOP_WORDS: Final = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})
_SPELLINGS: Final = frozenset(form for word in _STOP_WORDS for form in (word, word.capitalize(), word.upper()))
_BULLETS: Final = ("•", "-")
_ELLIPSES: Final = ("...", "…")
_WITH_LETTER: Final = re.compile(r"[^\W\d_]\S*")
_C4_ENDS: Final = (".", "?", "!", '"')
_LINE_ENDS: Final = tuple(".?!。？！．｡।۔؟‼‽⁇⁈⁉")
_SENTENCE_END: Final = re.compile(r"[.!?…][\"')\]”’»]*(?:\s|\Z)|[。！？]")
_POLICIES: Final = (
    "terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies",
)  # fmt: skip
_TOP_GRAMS: Final = (2, 3, 4)
_REPEATED_GRAMS: Final = (5, 6, 7, 8, 9, 10)


class Measure(NamedTuple):
    """One number of a text, and the bounds within which a text is kept."""

    name: str
    value: float
    least: float = -math.inf
    most: float = math.inf


class Outcome(NamedTuple):
    """What a rule makes of a text.

    Attributes:
        text: The text, which some rules change.
        counts: Name → how many changes.
        measures: Name → number; of a text that fails, up to the one that failed.
        failed: The first measure out of its bounds; None if the text is kept.
    """

    text: str
    counts: dict[str, int]
    measures: dict[str, float]
    failed: str | None


@dataclass(frozen=True)
class Rule:
    """Base of all rules; its fields are the thresholds."""

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_fields(self, **{field.name: _field_rule(field.default) for field in dataclasses.fields(self)})

    def edit(self, text: str) -> tuple[str, dict[str, int]]:
        """Return the text as the rule leaves it, and what it counted on the way."""
        return text, {}

    def measure(self, text: str) -> Iterator[Measure]:
        """Yield the measures of an edited text in the order in which they are checked."""
        return iter(())

    def apply(self, text: str, *, measure_all: bool = False) -> Outcome:
        """Edit and measure a text, up to the first measure out of bounds unless ``measure_all``."""
        text, counts = self.edit(text)
        measures: dict[str, float] = {}
        failed = None
        for name, value, least, most in self.measure(text):
            measures[name] = value
            if failed is None and not least <= value <= most:
                failed = name
                if not measure_all:
                    break
        return Outcome(text, counts, measures, failed)


@dataclass(frozen=True)
class GopherQuality(Rule):
    """Bounds of words, symbols and lines in natural text.

    Rae et al. 2021, Scaling Language Models (arXiv:2112.11446), appendix A1.1, "Quality filtering".

    Attributes:
        min_words: Number of words.
        max_words: Number of words.
        min_word_length: Mean length of a word, in characters.
        max_word_length: Mean length of a word, in characters.
        max_symbols: Hash signs for each word, and ellipses for each word.
        max_bullet_lines: Share of lines that begin with a bullet.
        max_ellipsis_lines: Share of lines that end with an ellipsis.
        min_letter_words: Share of words with a letter.
        min_stop_words: How many of the eight words the, be, to, of, and, that, have, with occur.
    """

    name: ClassVar[str] = "gopher_quality"
    min_words: int = 50
    max_words: int = 100_000
    min_word_length: float = 3.0
    max_word_length: float = 10.0
    max_symbols: float = 0.1
    max_bullet_lines: float = 0.9
    max_ellipsis_lines: float = 0.3
    min_letter_words: float = 0.8
    min_stop_words: int = 2

    def measure(self, text: str) -> Iterator[Measure]:
        words = text.split()
        count = len(words)
        yield Measure("words", count, self.min_words, self.max_words)
        mean = _share(sum(map(len, words)), count)
        yield Measure("word_length", mean, self.min_word_length, self.max_word_length)
        yield Measure("hashes", _share(text.count("#"), count), most=self.max_symbols)
        ellipses = sum(map(text.count, _ELLIPSES))
        yield Measure("ellipses", _share(ellipses, count), most=self.max_symbols)
        lines = text.splitlines()
        bullets = sum(line.lstrip().startswith(_BULLETS) for line in lines)
        yield Measure("bullet_lines", _share(bullets, len(lines)), most=self.max_bullet_lines)
        ends = sum(line.rstrip().endswith(_ELLIPSES) for line in lines)
        yield Measure("ellipsis_lines", _share(ends, len(lines)), most=self.max_ellipsis_lines)
        letters = _share(len(_WITH_LETTER.findall(text)), count)
        yield Measure("letter_words", letters, self.min_letter_words)
        stops = len({word.lower() for word in _SPELLINGS.intersection(words)})
        yield Measure("stop_words", stops, self.min_stop_words)


@dataclass(frozen=True)
class GopherRepetition(Rule):
    """Bounds of what a text repeats: lines, paragraphs and runs of words.

    Rae et al. 2021 (arXiv:2112.11446), appendix A1.1, table A1. All are shares: of the lines or paragraphs that
    occurred before; of the characters in these; of the characters in the most frequent run of n words, with its spaces;
    and of those in runs of n words that occurred before, counted once where they overlap.
    """

    name: ClassVar[str] = "gopher_repetition"
    max_duplicate_lines: float = 0.30
    max_duplicate_paragraphs: float = 0.30
    max_duplicate_line_characters: float = 0.20
    max_duplicate_paragraph_characters: float = 0.20
    max_top_2_gram: float = 0.20
    max_top_3_gram: float = 0.18
    max_top_4_gram: float = 0.16
    max_duplicate_5_grams: float = 0.15
    max_duplicate_6_grams: float = 0.14
    max_duplicate_7_grams: float = 0.13
    max_duplicate_8_grams: float = 0.12
    max_duplicate_9_grams: float = 0.11
    max_duplicate_10_grams: float = 0.10

    def measure(self, text: str) -> Iterator[Measure]:
        size = len(text)
        paragraphs = [part.strip("\n") for part in text.split("\n\n")]
        for kind, parts in (("paragraph", paragraphs), ("line", text.split("\n"))):
            count, repeated, characters = _repeated([part for part in parts if part])
            most = getattr(self, f"max_duplicate_{kind}s")
            yield Measure(f"duplicate_{kind}s", _share(repeated, count), most=most)
            most = getattr(self, f"max_duplicate_{kind}_characters")
            yield Measure(f"duplicate_{kind}_characters", _share(characters, size), most=most)
        grams = _Grams(text.split())
        for n in _TOP_GRAMS:
            name = f"top_{n}_gram"
            yield Measure(name, _share(grams.of(n).most_frequent(), size), most=getattr(self, f"max_{name}"))
        for n in _REPEATED_GRAMS:
            name = f"duplicate_{n}_grams"
            yield Measure(name, _share(grams.of(n).repeated(), size), most=getattr(self, f"max_{name}"))


class _Grams:
    """Runs of n words that occur more than once, from each n to the next.

    A run of n + 1 words repeats only where two runs of n words do, so there are fewer places to look at each time.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._ends = [0, *accumulate(map(len, words))]
        self._count = len(words)
        self._n = 1
        self._keep(range(len(words)), words)

    def of(self, n: int) -> _Grams:
        """Return the same for runs of ``n`` words, at least as many as before."""
        while self._n < n:
            self._n += 1
            after, next_keys = self._places[1:], self._keys[1:]
            adjacent = [*map((1).__eq__, map(sub, after, self._places))]
            pairs = map(add, map(self._count.__mul__, self._keys), next_keys)
            self._keep([*compress(self._places, adjacent)], [*compress(pairs, adjacent)])
        return self

    def _keep(self, places: Sequence[int], keys: Sequence[Any]) -> None:
        """Keep the places of runs that occur twice, each with the number of its first place as its key."""
        seen: dict[Any, int] = {}
        firsts = [*map(seen.setdefault, keys, range(len(keys)))]
        repeated = set(compress(firsts, map(ne, firsts, range(len(keys)))))
        known = [*map(repeated.__contains__, firsts)]
        self._places = [*compress(places, known)]
        self._keys = [*compress(firsts, known)]

    def _length(self, place: int) -> int:
        return self._ends[place + self._n] - self._ends[place]

    def most_frequent(self) -> int:
        """Return how many characters the most frequent run has in all its places, with the spaces in it."""
        if self._count < self._n:
            return 0
        place, times = 0, 1
        if self._keys:
            key, times = Counter(self._keys).most_common(1)[0]
            place = self._places[self._keys.index(key)]
        return (self._length(place) + self._n - 1) * times

    def repeated(self) -> int:
        """Return how many characters are in runs that occurred before."""
        seen: set[int] = set()
        characters = after = 0
        for place, key in zip(self._places, self._keys, strict=True):
            if place < after:
                continue
            if key in seen:
                characters += self._length(place)
                after = place + self._n
            seen.add(key)
        return characters


@dataclass(frozen=True)
class C4(Rule):
    """Keep lines that are sentences, and texts with enough of them.

    Raffel et al. 2020, T5 (JMLR 21, 140), section 2.2; the order of the rules and the phrases about policies as in the
    code of the data set. Lines that stay are without white space at their ends.

    Attributes:
        terminal_punctuation: Drop lines that do not end in one of ``. ? ! "``, or that end in an ellipsis.
        min_line_words: Drop lines with fewer words: 3 in the first edition of the paper, 5 in the last.
        javascript: Drop lines with this word.
        policies: Drop lines about cookies, privacy and terms of use.
        lorem_ipsum: Refuse texts with these words in a line that stays.
        curly_bracket: Refuse texts with ``{`` in a line that stays.
        min_sentences: Number of sentences: 5 in the first edition of the paper, 3 in the last.
    """

    name: ClassVar[str] = "c4"
    terminal_punctuation: bool = True
    min_line_words: int = 3
    javascript: bool = True
    policies: bool = True
    lorem_ipsum: bool = True
    curly_bracket: bool = True
    min_sentences: int = 5

    def edit(self, text: str) -> tuple[str, dict[str, int]]:
        lines = text.splitlines()
        kept = [line for line in map(str.strip, lines) if self._stays(line)]
        return "\n".join(kept), {"removed_lines": len(lines) - len(kept)}

    def _stays(self, line: str) -> bool:
        if self.terminal_punctuation and (not line.endswith(_C4_ENDS) or line.endswith(_ELLIPSES[0])):
            return False
        if len(line.split(None, self.min_line_words)) < self.min_line_words:
            return False
        lowered = line.lower()
        if self.javascript and "javascript" in lowered:
            return False
        return not (self.policies and any(phrase in lowered for phrase in _POLICIES))

    def measure(self, text: str) -> Iterator[Measure]:
        yield Measure("lorem_ipsum", int("lorem ipsum" in text.lower()), most=int(not self.lorem_ipsum))
        yield Measure("curly_bracket", int("{" in text), most=int(not self.curly_bracket))
        yield Measure("sentences", _sentences(text), self.min_sentences)


@dataclass(frozen=True)
class FineWeb(Rule):
    """Bounds of lists, navigation and repeated lines.

    Penedo et al. 2024, The FineWeb Datasets (arXiv:2406.17557), section 3.5. The bound of line breaks, and 0.01 for
    repeated characters, are those of the authors' filter in datatrove.

    Attributes:
        min_line_punctuation: Share of lines that end with punctuation. Blank lines count nowhere.
        max_short_lines: Share of short lines.
        short_line: Most characters of a short line.
        max_duplicate_characters: Share of characters in lines that occurred before.
        max_list: Line breaks for each word.
    """

    name: ClassVar[str] = "fineweb"
    min_line_punctuation: float = 0.12
    max_short_lines: float = 0.67
    short_line: int = 30
    max_duplicate_characters: float = 0.01
    max_list: float = 0.3

    def measure(self, text: str) -> Iterator[Measure]:
        lines = [line for line in text.split("\n") if line and not line.isspace()]
        count = len(lines)
        ended = sum(line.endswith(_LINE_ENDS) for line in lines)
        yield Measure("line_punctuation", _share(ended, count), self.min_line_punctuation)
        short = sum(len(line) <= self.short_line for line in lines)
        yield Measure("short_lines", _share(short, count), most=self.max_short_lines)
        breaks = text.count("\n")
        repeated = _repeated(lines)[2]
        share = _share(repeated, len(text) - breaks)
        yield Measure("duplicate_characters", share, most=self.max_duplicate_characters)
        yield Measure("list", _share(breaks, len(text.split())), most=self.max_list)


@dataclass(frozen=True)
class Length(Rule):
    """Bounds of the length of a text, none unless they are given.

    Attributes:
        min_characters: Number of characters, white space included.
        max_characters: Number of characters.
        min_words: Number of words.
        max_words: Number of words.
    """

    name: ClassVar[str] = "length"
    min_characters: int = 0
    max_characters: int = MAX_AMOUNT
    min_words: int = 0
    max_words: int = MAX_AMOUNT

    def measure(self, text: str) -> Iterator[Measure]:
        yield Measure("characters", len(text), self.min_characters, self.max_characters)
        yield Measure("words", len(text.split()), self.min_words, self.max_words)


def rule_of(given: Any, rules: Mapping[str, type[Rule]]) -> Rule:
    """Return a rule, from itself, its name, or a mapping of its name (``rule``) and thresholds.

    Raises:
        ValueError: There is no such rule, or it has no such option.
    """
    if isinstance(given, Rule):
        return given
    options = {"rule": given} if isinstance(given, str) else dict(given) if isinstance(given, Mapping) else {}
    name = options.pop("rule", None)
    if not isinstance(name, str) or name not in rules:
        raise ValueError(f"rules has {truncated_repr(given)}{_did_you_mean(name, rules, 'rules')}")
    fields = [field.name for field in dataclasses.fields(rules[name])]
    for option in options:
        if option not in fields:
            raise ValueError(f"Rule {name} has no option {truncated_repr(option)}{_did_you_mean(option, fields)}")
    try:
        return rules[name](**options)
    except ValueError as error:
        raise ValueError(f"Rule {name}: {error}") from None


def _did_you_mean(given: Any, known: Iterable[str], what: str = "options") -> str:
    near = difflib.get_close_matches(str(given)[:100], list(known), n=1)
    return f": did you mean {near[0]}?" if near else f": the {what} are {', '.join(known)}."


def _field_rule(default: Any) -> FieldRule:
    if isinstance(default, bool):
        return FLAG
    if isinstance(default, str):
        return TEXT
    return integer(0) if isinstance(default, int) else number(minimum=0)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _repeated(parts: Sequence[str]) -> tuple[int, int, int]:
    """Return how many parts there are, how many occurred before, and the characters of those."""
    unique = set(parts)
    if len(unique) == len(parts):
        return len(parts), 0, 0
    return len(parts), len(parts) - len(unique), sum(map(len, parts)) - sum(map(len, unique))


def _sentences(text: str) -> int:
    """Return the number of sentences; what follows the last end of one in a line is one as well."""
    count = 0
    for line in text.split("\n"):
        ends = [match.end() for match in _SENTENCE_END.finditer(line)]
        rest = line[ends[-1] :] if ends else line
        count += len(ends) + (1 if rest.strip() else 0)
    return count
