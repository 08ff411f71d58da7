"""Rows as lines of text: in columns that read well in a terminal and in a log, or as Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, its cells below those of the row before; a row stays one line whatever its cells hold."""
    flat = [[" ".join(cell.splitlines()) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*flat, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in flat]


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """The rows as a table, the first as its head; a row stays one line whatever its cells hold."""
    head, *body = ([" ".join(cell.replace("|", "\\|").splitlines()) for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))
