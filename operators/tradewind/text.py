"""Format text: tables for terminals, logs, Markdown and spreadsheets, and values in messages.

Text from records, logs, servers or libraries cannot control a terminal: control characters are escaped, also the
colours of a job's log and characters that change the writing direction.
"""

from __future__ import annotations

import csv
import datetime
import difflib
import io
import json
import re
import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

MAX_LINE_CHARS: Final = 300
MAX_VALUE_CHARS: Final = 40
MAX_INT_BITS: Final = 14_000
"""Largest integer that can be written: Python writes none with more than 4,300 digits."""
_MAX_NAMED: Final = 20
_MAX_REPR_CHARS: Final = 80
_CONTEXT_CHARS: Final = 12
_AGES: Final = ((86400, "day"), (3600, "hour"), (60, "minute"))
_MARKUP: Final = re.compile(r"[<\[\]]")
"""Start of a tag or a link in Markdown."""
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CODE: Final = re.compile(r"`[^`]*`")
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)


def format_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows in aligned columns, one line each; line breaks in cells become spaces."""
    flat = [[" ".join(cell.splitlines()) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*flat, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in flat]


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a Markdown table, the first as its header; escape line breaks and tags in cells."""
    head, *body = ([markdown_text(cell).replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))


def markdown_text(text: str) -> str:
    """Escape untrusted text for Markdown: one line, without tags, links and control characters; keep `code`."""
    line = escape_control_characters(" ".join(text.splitlines()))
    return line if _CODE.fullmatch(line) else _MARKUP.sub(lambda found: f"\\{found[0]}", line)


def as_csv(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as CSV; no spreadsheet runs a cell as a formula."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[_without_formula(cell) for cell in row] for row in rows])
    return text.getvalue()


def _without_formula(cell: str) -> str:
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t")) and not _NUMBER.fullmatch(cell) else cell


def single_line(text: object, max_chars: int = MAX_LINE_CHARS) -> str:
    """Return one line of at most ``max_chars`` characters, without unprintable ones."""
    line = " ".join(str(text)[: 10 * max_chars].split())
    shown = "".join(sign if sign.isprintable() else "?" for sign in line)
    return shown if len(shown) <= max_chars else f"{shown[: max_chars - 1]}…"


def quote_first_names(names: Iterable[object]) -> str:
    """List the first names in quotes, each shortened."""
    first = [repr(single_line(name, 60)) for name in islice(names, _MAX_NAMED + 1)]
    return ", ".join([*first[:_MAX_NAMED], *(["..."] if len(first) > _MAX_NAMED else [])])


def truncate_middle(text: str, max_chars: int) -> str:
    """Return ``text`` on one line, without its middle if it is longer than ``max_chars``."""
    text = " ".join(text.split())
    if len(text) <= max_chars:
        return text
    tail = (max_chars - 1) // 3
    return f"{text[: max_chars - 1 - tail]}…{text[-tail:]}"


def format_value(value: Any) -> str:
    """Format a value of a version record as JSON, truncated."""
    return truncate_middle(json.dumps(value, ensure_ascii=False, sort_keys=True), MAX_VALUE_CHARS)


def format_change(old: Any, new: Any) -> str:
    """Format ``old → new``; of long values with equal ends, only the part around the difference."""
    before, after = (json.dumps(value, ensure_ascii=False, sort_keys=True) for value in (old, new))
    if max(len(before), len(after)) > MAX_VALUE_CHARS:
        before, after = _without_common_ends(before, after)
    return f"{truncate_middle(before, MAX_VALUE_CHARS)} → {truncate_middle(after, MAX_VALUE_CHARS)}"


def pluralize(count: float, noun: str) -> str:
    """Format as ``1 step``, ``2 steps``, ``0.5 CPUs``."""
    return f"{int(count) if count == int(count) else f'{count:g}'} {noun}{'' if count == 1 else 's'}"


def format_duration(seconds: float) -> str:
    """Format as ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def format_age(seconds: float) -> str:
    """Format as ``3 days ago``, ``1 hour ago``, ``a moment ago``."""
    for size, unit in _AGES:
        count = int(seconds // size)
        if count >= 1:
            return f"{pluralize(count, unit)} ago"
    return "a moment ago"


def format_time(timestamp: float) -> str:
    """Format a time in UTC, to the minute."""
    return datetime.datetime.fromtimestamp(timestamp, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def format_producer(by: Mapping[str, Any]) -> str:
    """Name the run or script that claimed an attempt or asked for its end; else other facts, or nothing."""
    if by.get("run"):
        return f"run {by['run']} of {by['dag']}" if by.get("dag") else f"run {by['run']}"
    if by.get("script"):
        return f"script {by['script']}" + (f" on {by['host']}" if by.get("host") else "")
    return ", ".join(f"{key} {value}" for key, value in by.items() if isinstance(value, str) and value)


def _without_common_ends(before: str, after: str) -> tuple[str, str]:
    """Cut equal beginnings and ends of both texts, except for some context."""
    shorter = min(len(before), len(after))
    start = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    rest = shorter - start
    end = next((i for i in range(rest) if before[-1 - i] != after[-1 - i]), rest)
    skipped, dropped = max(0, start - _CONTEXT_CHARS), max(0, end - _CONTEXT_CHARS)
    head, tail = "…" if skipped else "", "…" if dropped else ""
    before, after = (f"{head}{text[skipped : len(text) - dropped]}{tail}" for text in (before, after))
    return before, after


def truncated_repr(value: object) -> str:
    """Return at most 80 characters of the ``repr`` of ``value``."""
    text = _SHORT.repr(value)
    return text if len(text) <= _MAX_REPR_CHARS else f"{text[: _MAX_REPR_CHARS - 3]}..."


def did_you_mean(name: object, known: Collection[str]) -> str:
    """End a message about an unknown name: suggest the most similar of ``known``, or list all."""
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known) or 'none'}."


class _Short(reprlib.Repr):
    """Short ``repr`` of any value, also of numbers that Python refuses to write."""

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > MAX_INT_BITS:
            return f"a whole number of {x.bit_length()} bits"
        return super().repr_int(x, level)


_SHORT: Final = _Short()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _MAX_REPR_CHARS
_SHORT.maxlevel = 3


def escape_control_characters(text: str) -> str:
    """Escape the control characters of ``text`` as Python does, except newlines and tabs."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
