"""Mask secrets with ``***`` in what a function prints, raises and returns.

A value is found in its plain form, in upper and lower case, in UTF-16, in Base64 and in hexadecimal digits. It is also
found as programs quote it for URLs, JSON, Python, shells or HTML, including one form within another. A value of several
lines is also searched line by line, and so are the passwords inside a URL or a JSON object. A value of up to three
characters is masked only as a separate word, since masking every ``a`` would mask every text. Longer values are masked
everywhere. Masking is no security boundary: a function that prints a value letter by letter, reversed or enciphered
reveals it.
"""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus, urlsplit

MASK: Final = "***"
NAMES_VARIABLE: Final = "TRADEWIND_MASKED"
"""The variable that names the environment variables whose values are secrets."""

_SHORT: Final = 3
MIN_SECRET_CHARS: Final = 8
"""Minimum length in characters: shorter values occur in texts by chance."""
_MIN_ENCODED: Final = 4
"""Minimum length of the middle of a value in Base64."""
_WRAPPED: Final = (76, 64)
"""Lengths at which programs break lines of Base64."""
_BEFORE: Final = 6
_GRAM: Final = 4
_FEW: Final = 48
"""Up to this number, searching forms one by one is faster than searching by their first bytes."""
_MAX_NESTED_CHARS: Final = 8192
"""A longer value is searched in each program's form, but not in one form within another."""
_SUB_DELIMITERS: Final = "!$&'()*+,;=:@/~"
_SECRET_KEY: Final = re.compile(r"key|token|secret|passw|passphrase|credential|pwd", re.IGNORECASE)
_ARMOUR: Final = re.compile(r"-----(?:BEGIN|END) [A-Z0-9 ]+-----")
_WORD_ENDS: Final = re.compile(rb"(?![A-Za-z0-9])")
_WORD_BEGINS: Final = re.compile(
    rb"(?:(?<![A-Za-z0-9])|(?<=\\[abfnrtv0])|(?<=%[0-9A-Fa-f]{2})|(?<=\x1b\[[0-9]m)|(?<=\x1b\[[0-9]{2}m))"
)

Span = tuple[int, int]


class Masker:
    """Masks the values that it knows; any thread may add values at any time.

    Args:
        values: The values to mask.
        exempt: Tradewind's own texts that other programs search for; no secret overlaps them.
    """

    def __init__(self, values: Iterable[str] = (), exempt: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._values: frozenset[str] = frozenset()
        self._exempt = tuple(text.encode() for text in exempt)
        self.forms = _Forms(frozenset(), self._exempt)
        self.add_secret(values)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], names: Iterable[str] | None = None) -> Masker:
        """Mask the values of the variables ``names``, by default those that ``NAMES_VARIABLE`` names."""
        wanted = environment.get(NAMES_VARIABLE, "").split(",") if names is None else names
        return cls(environment[name] for name in wanted if name in environment)

    def add_secret(self, values: Iterable[str]) -> None:
        """Mask these values as well from now on."""
        with self._lock:
            self._values |= {value for value in values if value.strip()}
            written = frozenset(form for value in self._values for form in _forms(value))
            self.forms = _Forms(written, self._exempt)

    def data(self, data: bytes) -> bytes:
        """Return ``data`` without the values."""
        spans = self.forms.spans(data)
        return _replace(data, _merge(spans)) if spans else data

    def text(self, text: str) -> str:
        """Return ``text`` without the values."""
        shown = self.data(text.encode("utf-8", "surrogatepass"))
        try:
            return shown.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:  # a value in Latin-1 matched a part of a letter
            return shown.decode("utf-8", "replace")

    def plain(self, value: Any) -> Any:
        """Return plain JSON without the values in its texts, keys and numbers."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.plain(item) for item in value]
        if isinstance(value, dict):
            return {self.text(name): self.plain(item) for name, item in value.items()}
        written = json.dumps(value)
        return value if self.text(written) == written else MASK

    def json(self, text: str) -> str:
        """Return valid JSON without the values, in which no stream finds a value."""
        if self.text(text) == text:
            return text
        shown = json.dumps(self.plain(json.loads(text)))
        return shown if self.text(shown) == shown else json.dumps(MASK)


class StreamMasker:
    """Masks values in a stream, however it is split into pieces.

    A possible beginning of a value is held back until more data arrives or the stream ends.
    """

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._before = b""
        self._held = b""
        self._hidden: int | None = None
        """Length of held data that belongs to a value for which ``***`` was the last output, if any."""

    def feed(self, data: bytes) -> bytes:
        """Add data; return the output that is complete."""
        return self._mask(data, is_end=False)

    def end(self) -> bytes:
        """Return the rest."""
        return self._mask(b"", is_end=True)

    def _mask(self, data: bytes, *, is_end: bool) -> bytes:
        forms, base = self._masker.forms, len(self._before)
        whole = self._before + self._held + data
        until = len(whole) if is_end else forms.held_from(whole, base)
        spans = [(start, end) for start, end in forms.spans(whole) if start >= base]
        begun = [] if self._hidden is None else [(base, base + self._hidden)]
        parts: list[bytes] = []
        at, hidden_to = base, -1
        for start, end in _merge([*begun, *spans]):
            is_begun = start == base and self._hidden is not None
            if start >= until and not is_begun:
                break
            if not is_begun:
                parts += [whole[at:start], MASK.encode()]
            at = hidden_to = end
        parts.append(whole[at:until])
        self._hidden = hidden_to - until if hidden_to >= until else None
        self._before, self._held = whole[max(0, until - _BEFORE) : until], whole[until:]
        return b"".join(parts)


class _Forms:
    """The byte strings to search for, and those that are never masked.

    A key of many lines has thousands of forms, and a log may be long. So many forms are searched only where four bytes
    match the beginning of one.
    """

    def __init__(self, written: frozenset[bytes], exempt: tuple[bytes, ...]) -> None:
        self._exempt = exempt if written else ()
        self._sorted = sorted({*written, *self._exempt})
        self._longest = max(map(len, self._sorted), default=0)
        self._begins = frozenset(form[:size] for form in self._sorted for size in range(1, _GRAM + 1))
        self._few = frozenset(form for form in written if len(form) < _GRAM or len(written) <= _FEW)
        self._many = written - self._few
        lengths: dict[bytes, set[int]] = defaultdict(set)
        for form in self._many:
            lengths[form[:_GRAM]].add(len(form))
        self._lengths = {gram: sorted(found, reverse=True) for gram, found in lengths.items()}

    def spans(self, data: bytes) -> list[Span]:
        """Return the parts of ``data`` to mask; one may contain another."""
        found = [span for form in self._few for span in _occurrences(form, data)]
        found += self._spans_of_many(data)
        if not found:
            return []
        exempt = _merge([span for form in self._exempt for span in _occurrences(form, data)])
        return [(at, end) for at, end in found if not any(first <= at and end <= last for first, last in exempt)]

    def _spans_of_many(self, data: bytes) -> Iterator[Span]:
        """Return the longest of many forms at each position."""
        if not self._many:
            return
        for at in range(len(data) - _GRAM + 1):
            lengths = self._lengths.get(data[at : at + _GRAM])
            if lengths is None:
                continue
            form = next((form for size in lengths if (form := data[at : at + size]) in self._many), None)
            if form is not None:  # the data ends: a shorter form than the index names
                yield at, at + len(form)

    def held_from(self, data: bytes, start: int) -> int:
        """Return the offset from which ``data`` may be the beginning of an incomplete form."""
        for index in range(max(start, len(data) - self._longest), len(data)):
            if data[index : index + _GRAM] in self._begins and self._may_continue(data[index:]):
                return index
        return len(data)

    def _may_continue(self, tail: bytes) -> bool:
        """Whether more of a form, or the end of a separate word, can follow."""
        at = bisect_left(self._sorted, tail)
        if len(tail) > _SHORT and self._sorted[at : at + 1] == [tail]:
            at += 1
        return any(form.startswith(tail) for form in self._sorted[at : at + 1])


def _occurrences(form: bytes, data: bytes) -> Iterator[Span]:
    at = data.find(form)
    while at >= 0:
        end = at + len(form)
        if len(form) > _SHORT or (_WORD_BEGINS.match(data, at) and _WORD_ENDS.match(data, end)):
            yield at, end
        at = data.find(form, at + 1)


def _merge(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _replace(data: bytes, spans: list[Span]) -> bytes:
    parts, at = [], 0
    for start, end in spans:
        parts += [data[at:start], MASK.encode()]
        at = end
    return b"".join([*parts, data[at:]])


def _forms(value: str) -> Iterator[bytes]:
    for part in _parts(value):
        for text in _texts(part):
            yield from (form for encoding in ("utf-8", "latin-1") if (form := _encode(text, encoding)))
        raw = _encode(part, "utf-8")
        yield repr(raw)[2:-1].encode()
        yield from _codes(raw)
        if len(part) > _SHORT:
            yield from (_encode(part, encoding).strip(b"\0") for encoding in ("utf-16-le", "utf-16-be"))


def _parts(value: str) -> set[str]:
    """Return the value, its lines and the passwords inside it."""
    parts = {value, value.strip(), "\r\n".join(value.splitlines())}
    if "\n" in value:
        lines = {line.strip() for line in value.splitlines()}
        parts |= {line for line in lines if len(line) >= MIN_SECRET_CHARS and not _ARMOUR.fullmatch(line)}
    parts |= {part for part in _inner(value) if len(part) >= MIN_SECRET_CHARS}
    return {part for part in parts if part.strip()}


def _inner(value: str) -> Iterator[str]:
    if value.lstrip().startswith("{"):
        try:
            yield from _secret_leaves(json.loads(value), "")
        except (ValueError, RecursionError):
            return
    elif "://" in value:
        try:
            yield urlsplit(value).password or ""
        except ValueError:
            return


def _secret_leaves(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _secret_leaves(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _secret_leaves(item, name)
    elif isinstance(value, str) and _SECRET_KEY.search(name):
        yield value
        yield from (line for line in value.splitlines() if not _ARMOUR.fullmatch(line))


def _texts(value: str) -> set[str]:
    """Return the value as programs write it, also within another program's form."""
    once = {write(value) for write in _WRITERS}
    if len(value) <= _MAX_NESTED_CHARS:
        once |= {write(text) for text in once for write in _WRITERS}
    cased = {value.upper(), value.lower(), value.swapcase()} if len(value) >= MIN_SECRET_CHARS else set()
    return {value} | once | cased


def _percent(safe: str) -> Callable[[str], str]:
    return lambda value: quote(value, safe=safe, errors="replace")


def _percent_in_small_letters(value: str) -> str:
    return re.sub(r"%[0-9A-F]{2}", lambda code: code[0].lower(), quote(value, safe="", errors="replace"))


def _json(value: str) -> str:
    return json.dumps(value)[1:-1]


def _python_in_quotes(value: str) -> str:
    """Return Python's form inside each kind of quotation marks."""
    return repr(value + "'\"")[1:-1].removesuffix("\\'\"")


_WRITERS: Final[tuple[Callable[[str], str], ...]] = (
    _percent(""),
    _percent("/"),
    _percent(_SUB_DELIMITERS),
    _percent_in_small_letters,
    lambda value: quote_plus(value, errors="replace"),
    _json,
    lambda value: _json(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
    lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    lambda value: _json(value).replace("/", "\\/"),
    lambda value: repr(value)[1:-1],
    lambda value: ascii(value)[1:-1],
    _python_in_quotes,
    lambda value: value.encode("unicode_escape", "replace").decode(),
    lambda value: shlex.quote(value).removeprefix("'").removesuffix("'"),
    lambda value: re.sub(r"([^\w@%+=:,./-])", r"\\\1", value, flags=re.A),
    lambda value: re.sub(r'([\\"$`])', r"\\\1", value),
    html.escape,
    lambda value: html.escape(value, quote=False),
    lambda value: html.escape(value).replace("&#x27;", "&#39;"),
)
"""The forms of the value in a URL, JSON, Python, a shell and HTML."""


def _codes(raw: bytes) -> Iterator[bytes]:
    """Return the value in hexadecimal digits and in Base64, alone or inside other data."""
    if len(raw) <= _SHORT:
        return
    yield from (raw.hex().encode(), raw.hex().upper().encode())
    whole = base64.b64encode(raw)
    yield whole
    for size in _WRAPPED:
        lines = [whole[at : at + size] for at in range(0, len(whole), size)]
        yield from (line for line in lines if len(lines) > 1 and len(line) >= MIN_SECRET_CHARS)
    for ahead in range(3):
        written = base64.b64encode(b"\0" * ahead + raw)
        inner = written[-(-8 * ahead // 6) : 8 * (ahead + len(raw)) // 6]
        if len(inner) >= _MIN_ENCODED:
            yield inner
            yield inner.replace(b"+", b"-").replace(b"/", b"_")
    yield whole.replace(b"+", b"-").replace(b"/", b"_")


def _encode(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding, "surrogateescape")
    except UnicodeEncodeError:  # it has no such form
        return text.encode("utf-8", "replace")
