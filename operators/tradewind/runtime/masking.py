"""Where a secret's value would be shown, ``***`` stands: in what a function prints, raises and returns.

A value is looked for as it is and as programs write texts: quoted for a URL, escaped for JSON, Python, a shell or HTML,
in Base64 and in hexadecimal digits. A value of several lines is also looked for line by line, and so are the passwords
inside one that is a URL or a JSON object. A value of up to three characters is hidden where it stands as a word of its
own, since hiding every ``a`` would hide every text; a longer one is hidden wherever it stands. This is a net and no
wall: who prints a value letter by letter, reversed or enciphered shows it.
"""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus, urlsplit

SHOWN: Final = "***"
NAMES_VARIABLE: Final = "TRADEWIND_MASKED"
"""Names the variables of a process's environment whose values are secrets."""

_SHORT: Final = 3
LEAST_TELLING: Final = 8
"""Characters: what is shorter stands in texts by chance."""
_LEAST_CODED: Final = 4
"""Of the middle of a value in Base64."""
_WRAPPED: Final = (76, 64)
"""After how many characters programs break lines of Base64."""
_BEFORE: Final = 6
_SUB_DELIMITERS: Final = "!$&'()*+,;=:@/~"
_SECRET_KEY: Final = re.compile(r"key|token|secret|passw|passphrase|credential|pwd", re.IGNORECASE)
_ARMOUR: Final = re.compile(r"-----(?:BEGIN|END) [A-Z0-9 ]+-----")
_WORD_ENDS: Final = re.compile(rb"(?![A-Za-z0-9])")
_WORD_BEGINS: Final = re.compile(
    rb"(?:(?<![A-Za-z0-9])|(?<=\\[abfnrtv0])|(?<=%[0-9A-Fa-f]{2})|(?<=\x1b\[[0-9]m)|(?<=\x1b\[[0-9]{2}m))"
)

Span = tuple[int, int]


class Masker:
    """Hides the values that it knows; it may learn more of them at any time, from any thread.

    Args:
        values: What to hide.
        kept: Texts of ours that other programs look for, which no secret has a part in.
    """

    def __init__(self, values: Iterable[str] = (), kept: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._values: frozenset[str] = frozenset()
        self._kept = tuple(one.encode() for one in kept)
        self.forms = _Forms(frozenset(), self._kept)
        self.learn(values)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], names: Iterable[str] | None = None) -> Masker:
        """Hides the values of the variables ``names``, by default of those that ``NAMES_VARIABLE`` names."""
        wanted = environment.get(NAMES_VARIABLE, "").split(",") if names is None else names
        return cls(environment[name] for name in wanted if name in environment)

    def learn(self, values: Iterable[str]) -> None:
        """Hide these as well from now on."""
        with self._lock:
            self._values |= {value for value in values if value.strip()}
            written = frozenset(form for value in self._values for form in _forms(value))
            self.forms = _Forms(written, self._kept)

    def data(self, data: bytes) -> bytes:
        """``data`` without the values."""
        spans = self.forms.spans(data)
        return _without(data, _merged(spans)) if spans else data

    def text(self, text: str) -> str:
        """``text`` without the values."""
        return self.data(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def plain(self, value: Any) -> Any:
        """Plain JSON without the values in its texts, keys and numbers."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.plain(one) for one in value]
        if isinstance(value, dict):
            return {self.text(name): self.plain(one) for name, one in value.items()}
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return SHOWN if self.text(str(value)) == SHOWN else value
        return value


class StreamMasker:
    """Hides values in a stream, whatever the pieces in which it comes.

    What may be the beginning of a value is held back until more comes or the stream ends.
    """

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._before = b""
        self._held = b""
        self._hidden: int | None = None
        """How much of what is held belongs to a value for which ``***`` was the last thing given out, if it was."""

    def feed(self, data: bytes) -> bytes:
        """What can be shown now."""
        return self._shown(data, is_end=False)

    def end(self) -> bytes:
        """The rest."""
        return self._shown(b"", is_end=True)

    def _shown(self, data: bytes, *, is_end: bool) -> bytes:
        forms, base = self._masker.forms, len(self._before)
        whole = self._before + self._held + data
        until = len(whole) if is_end else forms.held_from(whole, base)
        spans = [(start, end) for start, end in forms.spans(whole) if start >= base]
        begun = [] if self._hidden is None else [(base, base + self._hidden)]
        parts: list[bytes] = []
        at, hidden_to = base, -1
        for start, end in _merged([*begun, *spans]):
            is_begun = start == base and self._hidden is not None
            if start >= until and not is_begun:
                break
            if not is_begun:
                parts += [whole[at:start], SHOWN.encode()]
            at = hidden_to = end
        parts.append(whole[at:until])
        self._hidden = hidden_to - until if hidden_to >= until else None
        self._before, self._held = whole[max(0, until - _BEFORE) : until], whole[until:]
        return b"".join(parts)


class _Forms:
    """The byte strings to look for, and those among which nothing is hidden."""

    def __init__(self, written: frozenset[bytes], kept: tuple[bytes, ...]) -> None:
        self._written = tuple(sorted(written, key=len, reverse=True))
        self._kept = kept if written else ()
        self._longest = max(map(len, (*self._written, *self._kept)), default=0)
        self._by_first: dict[int, list[bytes]] = defaultdict(list)
        for form in (*self._written, *self._kept):
            self._by_first[form[0]].append(form)

    def spans(self, data: bytes) -> list[Span]:
        """What of ``data`` to hide; one may lie in another."""
        found = [span for form in self._written for span in _occurrences(form, data)]
        if not found:
            return []
        kept = _merged([span for form in self._kept for span in _occurrences(form, data)])
        return [span for span in found if not _is_inside(span, kept)]

    def held_from(self, data: bytes, start: int) -> int:
        """From where on ``data`` may be the beginning of something to look for that is not complete yet."""
        for index in range(max(start, len(data) - self._longest), len(data)):
            forms = self._by_first.get(data[index])
            if forms and any(_may_go_on(form, data[index:]) for form in forms):
                return index
        return len(data)


def _occurrences(form: bytes, data: bytes) -> Iterator[Span]:
    at = data.find(form)
    while at >= 0:
        end = at + len(form)
        if len(form) > _SHORT or (_WORD_BEGINS.match(data, at) and _WORD_ENDS.match(data, end)):
            yield at, end
        at = data.find(form, at + 1)


def _may_go_on(form: bytes, tail: bytes) -> bool:
    """Whether more of ``form`` can follow, or what says that it stands as a word of its own."""
    return form.startswith(tail) and (len(form) > len(tail) or len(form) <= _SHORT)


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _is_inside(span: Span, among: list[Span]) -> bool:
    return any(start <= span[0] and span[1] <= end for start, end in among)


def _without(data: bytes, spans: list[Span]) -> bytes:
    parts, at = [], 0
    for start, end in spans:
        parts += [data[at:start], SHOWN.encode()]
        at = end
    return b"".join([*parts, data[at:]])


# ---- how a value is written


def _forms(value: str) -> Iterator[bytes]:
    for part in _parts(value):
        for text in _texts(part):
            yield from (form for encoding in ("utf-8", "latin-1") if (form := _encoded(text, encoding)))
        raw = _encoded(part, "utf-8")
        yield repr(raw)[2:-1].encode()
        yield from _codes(raw)


def _parts(value: str) -> set[str]:
    """The value, its lines, and the passwords inside it."""
    parts = {value, value.strip(), "\r\n".join(value.splitlines())}
    if "\n" in value:
        lines = {line.strip() for line in value.splitlines()}
        parts |= {line for line in lines if len(line) >= LEAST_TELLING and not _ARMOUR.fullmatch(line)}
    parts |= {one for one in _inner(value) if len(one) >= LEAST_TELLING}
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
        for key, one in value.items():
            yield from _secret_leaves(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from _secret_leaves(one, name)
    elif isinstance(value, str) and _SECRET_KEY.search(name):
        yield value
        yield from (line for line in value.splitlines() if not _ARMOUR.fullmatch(line))


def _texts(value: str) -> set[str]:
    """The value as a URL, JSON, Python, a shell and HTML would hold it."""
    quoted = {quote(value, safe=safe, errors="replace") for safe in ("", "/", _SUB_DELIMITERS)}
    quoted |= {quote_plus(value, errors="replace"), quote(quote(value, safe="", errors="replace"), safe="")}
    quoted |= {re.sub(r"%[0-9A-F]{2}", lambda code: code[0].lower(), one) for one in quoted}
    as_json = json.dumps(value)[1:-1]
    for_web = as_json.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    escaped = {as_json, json.dumps(as_json)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], for_web}
    escaped |= {as_json.replace("/", "\\/"), repr(value)[1:-1], repr(value + "'\"")[1:-1].removesuffix("\\'\"")}
    escaped |= {repr(repr(value)[1:-1])[1:-1], value.encode("unicode_escape", "replace").decode()}
    shell = shlex.quote(value)
    escaped |= {shell.removeprefix("'").removesuffix("'"), re.sub(r"([^\w@%+=:,./-])", r"\\\1", value, flags=re.A)}
    escaped.add(re.sub(r'([\\"$`])', r"\\\1", value))
    web = {html.escape(value), html.escape(value, quote=False), html.escape(value).replace("&#x27;", "&#39;")}
    return {value} | quoted | escaped | web


def _codes(raw: bytes) -> Iterator[bytes]:
    """The value in hexadecimal digits and in Base64, alone or in the middle of something."""
    if len(raw) <= _SHORT:
        return
    yield from (raw.hex().encode(), raw.hex().upper().encode())
    whole = base64.b64encode(raw)
    yield whole
    for size in _WRAPPED:
        lines = [whole[at : at + size] for at in range(0, len(whole), size)]
        yield from (line for line in lines if len(lines) > 1 and len(line) >= LEAST_TELLING)
    for ahead in range(3):
        written = base64.b64encode(b"\0" * ahead + raw)
        inner = written[-(-8 * ahead // 6) : 8 * (ahead + len(raw)) // 6]
        if len(inner) >= _LEAST_CODED:
            yield inner
            yield inner.replace(b"+", b"-").replace(b"/", b"_")
    yield whole.replace(b"+", b"-").replace(b"/", b"_")


def _encoded(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding, "surrogateescape")
    except UnicodeEncodeError:  # it has no such form
        return text.encode("utf-8", "replace")
