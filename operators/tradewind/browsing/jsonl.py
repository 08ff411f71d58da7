"""JSON lines, compressed or not."""

from __future__ import annotations

import json
import time
from typing import Any, Final

from tradewind.browsing.access import Access, OutOfTimeError, Stored
from tradewind.browsing.answers import Column, Fact
from tradewind.browsing.cells import type_name
from tradewind.browsing.formats import Details
from tradewind.browsing.limits import MAX_COLUMNS, MAX_LINE_VALUES
from tradewind.browsing.lines import LineSource
from tradewind.browsing.paging import Asked

_SAMPLED_ROWS: Final = 20
_SAMPLING_S: Final = 1.0
_PLAIN_BYTES: Final = 1 << 18
"""A line up to this size may hold any values."""


def parse_line(line: bytes) -> Any:
    """Return the value of a line.

    Raises:
        ValueError: It is no JSON, or has too many values.
    """
    if len(line) > _PLAIN_BYTES:
        values = line.count(b"[") + line.count(b"{") + line.count(b",")
        if values > MAX_LINE_VALUES:
            raise ValueError(f"it may have {values:,} values, and a page reads {MAX_LINE_VALUES:,}")
    return json.loads(line)


def rows(access: Access, stored: Stored, asked: Asked) -> LineSource:
    """Return the rows of a file of JSON lines."""
    return LineSource(access, stored, asked, parse_line)


def describe(access: Access, stored: Stored) -> Details:
    """Return the columns of the first rows: nothing tells the number of rows without reading all."""
    access = Access(access.roots, min(access.deadline, time.monotonic() + _SAMPLING_S))
    source = rows(access, stored, Asked())
    kinds: dict[str, set[str]] = {}
    seen = size = 0
    try:
        for raw in source:
            seen += 1
            if isinstance(raw.value, dict):
                for name, value in raw.value.items():
                    if len(kinds) < MAX_COLUMNS or name in kinds:
                        kinds.setdefault(name, set()).add(type_name(value))
            if seen >= _SAMPLED_ROWS or access.left_s < 0:
                break
        size = source.offset
    except OutOfTimeError:
        return Details(notes=["The first lines of the file are too long, or blank."])
    finally:
        source.close()
    columns = [Column(name, " | ".join(sorted(each - {"null"} or each))) for name, each in kinds.items()]
    facts = []
    if seen and not stored.path.endswith((".gz", ".zst", ".zstd", ".bz2")):
        facts.append(Fact("rows, estimated", f"{round(stored.size / max(size / seen, 1)):,}"))
    return Details(columns=columns, facts=facts)
