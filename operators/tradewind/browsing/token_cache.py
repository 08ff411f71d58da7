"""Token caches of Levanter: the ids of a document, and its text where the cache's tokenizer is at hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from tradewind.browsing.access import Access, Stored, told
from tradewind.browsing.answers import Column, Fact
from tradewind.browsing.arrays import open_array
from tradewind.browsing.formats import Details
from tradewind.browsing.memory import loading
from tradewind.browsing.paging import Asked, RawRow
from tradewind.browsing.refusals import BrowsingError, UnreadableError
from tradewind.datasets.cache_rows import LEDGER_FILE
from tradewind.datasets.files import join, parent
from tradewind.datasets.tokenizer_files import MAIN_FILE, check_tokenizer, is_on_hub
from tradewind.records.parsing import RecordFormatError, parse_object
from tradewind.records.pins import OWN_FOLDER
from tradewind.text import single_line

_MAX_TOKENIZER_BYTES: Final = 40 << 20
"""Gemma's has 33 MB; the library takes some ten times as much memory."""
_MAX_LEDGER_BYTES: Final = 16 << 20
_MAX_FIELDS: Final = 20
_MAX_TOKENS: Final = 4096
"""Ids of a document in a page; a document can have millions."""
_MAX_WHOLE_TOKENS: Final = 200_000
"""Ids of a document that is asked for alone."""
_BLOCK_ROWS: Final = 256
_TEXT: Final = "text"


def read_ledger(access: Access, path: str) -> dict[str, Any]:
    """Return the ledger of a cache.

    Raises:
        UnreadableError: It is none.
    """
    with access.open(join(path, LEDGER_FILE)) as file:
        data = file.read(_MAX_LEDGER_BYTES + 1)
    try:
        if len(data) > _MAX_LEDGER_BYTES:
            raise RecordFormatError(f"it has more than {_MAX_LEDGER_BYTES:,} bytes")
        ledger = parse_object(data.decode("utf-8", "replace"))
        if not isinstance(ledger.get("total_num_rows"), int):
            raise RecordFormatError("it has no number of rows")
    except RecordFormatError as error:
        raise UnreadableError(f"{path} is no token cache, because of its {LEDGER_FILE}: {error}.") from None
    return ledger


def fields_of(ledger: Mapping[str, Any]) -> list[str]:
    """Return the names of the cache's columns."""
    counts = ledger.get("field_counts")
    names = [name for name in counts if _is_name(name)] if isinstance(counts, dict) else []
    return sorted(names)[:_MAX_FIELDS] or ["input_ids"]


def describe(access: Access, stored: Stored) -> Details:
    """Return counts, tokenizer and columns."""
    ledger = read_ledger(access, stored.path)
    given = ledger.get("field_counts")
    counts: Mapping[str, Any] = given if isinstance(given, dict) else {}
    facts = [Fact("documents", f"{ledger['total_num_rows']:,}")]
    facts += [Fact(f"values of {name}", f"{count:,}") for name, count in counts.items() if isinstance(count, int)]
    shards = ledger.get("finished_shards")
    facts.append(Fact("files", f"{len(shards) if isinstance(shards, list) else 0:,}"))
    facts.append(Fact("finished", "yes" if ledger.get("is_finished") else "no"))
    metadata = _metadata(ledger)
    facts += [Fact(single_line(name), single_line(value)) for name, value in list(metadata.items())[:10]]
    tokenizer, problem = tokenizer_of(access, stored.path, ledger)
    columns = [Column(name, "token ids") for name in fields_of(ledger)]
    if tokenizer is not None:
        columns.append(Column(_TEXT, "decoded"))
    return Details(columns=columns, rows=ledger["total_num_rows"], facts=facts, notes=[problem] if problem else [])


def rows(access: Access, stored: Stored, asked: Asked) -> TokenSource:
    """Return the documents of a cache."""
    return TokenSource(access, stored, asked)


class TokenSource:
    """Documents from a number on; a place is the number of a document, from 0."""

    def __init__(self, access: Access, stored: Stored, asked: Asked) -> None:
        self._access = access
        self._path = stored.path
        ledger = read_ledger(access, stored.path)
        self._fields = fields_of(ledger)
        self.total: int | None = max(ledger["total_num_rows"], 0)
        self._tokenizer, self.note = tokenizer_of(access, stored.path, ledger)
        names = [*self._fields, *([_TEXT] if self._tokenizer is not None else [])]
        if missing := [name for name in asked.columns if name not in names]:
            raise UnreadableError(f"{stored.path} has no column {missing[0]!r}: it has {', '.join(names)}.")
        shown = [name for name in names if name in asked.columns] if asked.columns else names
        self.columns: list[Column] | None = [
            Column(name, "decoded" if name == _TEXT else "token ids") for name in shown
        ]
        self._shown = shown
        if asked.filter and self.note is None:
            self.note = f"The filter looks at the first {_MAX_TOKENS:,} ids of each document."
        self._most = min(max(asked.chars, 1), _MAX_TOKENS) if asked.raw_chars else _MAX_TOKENS
        self._most = _MAX_WHOLE_TOKENS if asked.limit == 1 else self._most
        self._block = _BLOCK_ROWS if asked.filter else min(_BLOCK_ROWS, asked.limit)
        self._next = _first(asked, self.total or 0, stored.path)

    def close(self) -> None:
        """Keep nothing open."""

    def after(self) -> str | None:
        return None if self._next >= (self.total or 0) else str(self._next)

    def position(self) -> float | None:
        return round(min(self._next / self.total, 1.0), 6) if self.total else 1.0

    def __iter__(self) -> Iterator[RawRow]:
        total = self.total or 0
        while self._next < total:
            count = min(self._block, total - self._next)
            blocks = {name: self._ids(name, self._next, count) for name in self._fields if self._wants(name)}
            for at in range(count):
                values: dict[str, Any] = {name: ids[at] for name, ids in blocks.items() if name in self._shown}
                if self._tokenizer is not None and _TEXT in self._shown:
                    values[_TEXT] = self._tokenizer.decode(blocks[self._fields[0]][at], skip_special_tokens=False)
                self._next += 1
                yield RawRow(str(self._next - 1), self._next, values)

    def _wants(self, name: str) -> bool:
        return name in self._shown or (name == self._fields[0] and _TEXT in self._shown)

    def _ids(self, name: str, start: int, count: int) -> Sequence[list[int]]:
        """Return the first ids of ``count`` documents."""
        folder = join(self._path, name)
        ends = open_array(self._access, join(folder, "offsets")).read(start, start + count + 1)
        if start == 0:
            ends[0] = 0  # the first element is the number of documents
        values = open_array(self._access, join(folder, "data"))
        lengths = [int(end - begin) for begin, end in zip(ends[:-1], ends[1:], strict=True)]
        if any(length < 0 for length in lengths):
            raise UnreadableError(f"{folder} is damaged: the ends of its documents are not in order.")
        found: list[list[int]] = []
        at = 0
        while at < count:  # documents whose ids are read at once
            stop, size = at, 0
            while stop < count and (stop == at or size + lengths[stop] <= _MAX_TOKENS * 16):
                size += lengths[stop]
                stop += 1
            size = min(size, self._most) if stop == at + 1 else size
            ids = values.read(int(ends[at]), int(ends[at]) + size)
            for each in range(at, stop):
                begin = int(ends[each] - ends[at])
                found.append(ids[begin : min(begin + lengths[each], begin + self._most)].tolist())
            at = stop
        return found


def tokenizer_of(access: Access, path: str, ledger: Mapping[str, Any]) -> tuple[Any, str | None]:
    """Return the tokenizer of a cache, or None and why its ids cannot be decoded."""
    name = _metadata(ledger).get("tokenizer")
    if not isinstance(name, str) or not name:
        return None, "The cache does not name its tokenizer, so its ids are not decoded."
    tried = ""
    for folder in _folders(path, name):
        file = join(folder, MAIN_FILE)
        try:
            stored = access.stat(file)
            return _load(access, file, stored), None
        except (BrowsingError, ValueError) as error:
            tried = single_line(error)
    return None, f"The ids are not decoded: the tokenizer {name!r} was not found below an allowed root ({tried})."


def _folders(path: str, name: str) -> Iterator[str]:
    """Yield where a tokenizer of this name may be: at its path, or copied to the prefix that the cache is below."""
    if not is_on_hub(name):
        yield name
        return
    while (above := parent(path)) != path and above not in (".", "/") and not above.endswith(":"):
        yield join(above, OWN_FOLDER, "tokenizers", name.replace("/", "--"))
        path = above


def _load(access: Access, file: str, stored: Stored) -> Any:
    if stored.size > _MAX_TOKENIZER_BYTES:
        raise ValueError(f"{file} has more than {_MAX_TOKENIZER_BYTES >> 20} MB.")
    with access.open(file) as opened, told(file), loading():
        data = opened.read(stored.size)  # a buffer of this size is taken, whatever the file has
    return _parsed(data)


@lru_cache(maxsize=2)
def _parsed(data: bytes) -> Any:
    with loading():
        return check_tokenizer({MAIN_FILE: data}, "tokenizer")


def _metadata(ledger: Mapping[str, Any]) -> Mapping[str, Any]:
    outer = ledger.get("metadata")
    inner = outer.get("preprocessor_metadata") if isinstance(outer, dict) else None
    return inner if isinstance(inner, dict) else {}


def _is_name(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= 100 and name.replace("_", "").isalnum() and name.isascii()


def _first(asked: Asked, total: int, path: str) -> int:
    if asked.cursor:
        if not asked.cursor.isascii() or not asked.cursor.isdecimal():
            raise UnreadableError(f"{path} has no document {asked.cursor!r}.")
        return int(asked.cursor[:18])
    return int(total * asked.at) if asked.at is not None else asked.start or 0
