"""Rows as lines of text: in columns that read well in a terminal and in a log, as Markdown, or for a spreadsheet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Final

_MEANING: Final = re.compile(r"[<\[\]]")
"""What begins a tag or a link in Markdown."""
_CODE: Final = re.compile(r"`[^`]*`")
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, its cells below those of the row before; a row stays one line whatever its cells hold."""
    flat = [[" ".join(cell.splitlines()) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*flat, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in flat]


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """The rows as a table, the first as its head; a row stays one line whatever its cells hold, and they no tags."""
    head, *body = ([markdown_text(cell).replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))


def markdown_text(text: str) -> str:
    """Somebody's words in a page of Markdown: one line, with neither tags nor links; code in backticks is left."""
    line = " ".join(text.splitlines())
    return line if _CODE.fullmatch(line) else _MEANING.sub(lambda found: f"\\{found[0]}", line)


def as_csv(rows: Sequence[Sequence[str]]) -> str:
    """The rows for a spreadsheet, which runs none of the cells as a formula."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[_without_formula(cell) for cell in row] for row in rows])
    return text.getvalue()


def _without_formula(cell: str) -> str:
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t")) and not _NUMBER.fullmatch(cell) else cell
