"""Comma- and tab-separated values, compressed or not. The first line names the columns."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Mapping
from typing import Any, Final

from tradewind.browsing.access import Access, Stored
from tradewind.browsing.answers import Column, Fact
from tradewind.browsing.formats import Details
from tradewind.browsing.limits import MAX_COLUMNS, MAX_LINE_BYTES
from tradewind.browsing.lines import LineSource
from tradewind.browsing.packed import READ_ERRORS, content_of, damaged, release
from tradewind.browsing.paging import Asked
from tradewind.browsing.refusals import UnreadableError

_SEPARATORS: Final = ",\t;|"
_HEADER_BYTES: Final = 1 << 18


class CsvSource(LineSource):
    """Rows of CSV; a quoted value may have line breaks."""

    def __init__(self, access: Access, stored: Stored, asked: Asked) -> None:
        header, separator, names = _header_of(access, stored)
        super().__init__(access, stored, asked, lambda line: _parse(line, separator, names), header)
        shown = [name for name in names if name in asked.columns] if asked.columns else names
        if missing := [name for name in asked.columns if name not in names]:
            raise UnreadableError(f"{stored.path} has no column {missing[0]!r}.")
        if len(shown) > MAX_COLUMNS:
            self.note = f"The file has {len(shown):,} columns, and a page shows {MAX_COLUMNS}: name others to see them."
        self.columns = [Column(name, "text") for name in shown[:MAX_COLUMNS]]
        self.separator = separator
        if asked.at and not self.note:
            self.note = "The page begins at a line, which may be inside a quoted value."

    def rest_of_row(self, line: bytes) -> bytes:
        """Read the lines that belong to a row with an open quote."""
        parts, size, is_open = [], len(line), line.count(b'"') % 2 == 1
        while is_open and size <= MAX_LINE_BYTES:
            more = self._file.readline(MAX_LINE_BYTES + 1 - size)
            if not more:
                break
            parts.append(more)
            size += len(more)
            is_open = more.count(b'"') % 2 == 0
        return b"".join(parts)


def rows(access: Access, stored: Stored, asked: Asked) -> CsvSource:
    """Return the rows of a file of separated values."""
    return CsvSource(access, stored, asked)


def describe(access: Access, stored: Stored) -> Details:
    """Return the columns that the first line names."""
    source = CsvSource(access, stored, Asked())
    source.close()
    name = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar"}[source.separator]
    return Details(columns=source.columns or [], facts=[Fact("separator", name)])


def _header_of(access: Access, stored: Stored) -> tuple[int, str, list[str]]:
    """Return the length of the first line, the separator and the names of the columns."""
    file, stream = content_of(access, stored)
    try:
        file.seek(0)
        line = file.readline(_HEADER_BYTES)
    except READ_ERRORS as error:
        raise damaged(stored.path, error) from error
    finally:
        release(file, stream)
    if len(line) >= _HEADER_BYTES and not line.endswith(b"\n"):
        raise UnreadableError(f"{stored.path} has a first line of more than {_HEADER_BYTES:,} bytes: see it as text.")
    text = line.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")
    is_tab = stored.path.lower().removesuffix(".gz").endswith(".tsv")
    separator = "\t" if is_tab else max(_SEPARATORS, key=text.count)
    seen: dict[str, int] = {}
    names = []
    for name in next(iter(csv.reader([text], delimiter=separator)), []):
        count = seen[name] = seen.get(name, 0) + 1
        names.append(name if count == 1 else f"{name} ({count})")
    return len(line), separator, names


def _parse(line: bytes, separator: str, names: list[str]) -> Mapping[str, Any]:
    csv.field_size_limit(MAX_LINE_BYTES)
    text = line.decode("utf-8", "replace")
    try:
        fields = next(iter(csv.reader(io.StringIO(text, newline=""), delimiter=separator)), [])
    except csv.Error as error:
        raise ValueError(str(error)) from error
    if len(fields) > len(names):
        raise ValueError(f"it has {len(fields):,} values, and the first line names {len(names):,}")
    return dict(zip(names, fields, strict=False))
