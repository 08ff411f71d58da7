"""Format figures as tables of plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Table:
    """A table: its title, column titles, rows, and notes that explain it."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: Sequence[str] = ()

    def add(self, *cells: str) -> None:
        """Append a row."""
        self.rows.append(cells)

    def text(self) -> str:
        """Return title, rule, aligned rows and notes; the first column is left-aligned, figures are right-aligned."""
        lines = [self.columns, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = [_aligned(line, widths) for line in lines]
        rule = "-" * max(map(len, aligned))
        notes = [f"  {note}" for note in self.notes]
        return "\n".join([self.title, rule, aligned[0], rule, *aligned[1:], rule, *notes, ""])


def seconds(value: float) -> str:
    """Format a duration with at least three significant figures."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.0f} ms" if value >= 0.01 else f"{value * 1000:.2f} ms"


def kilobytes(count: int) -> str:
    return f"{count / 1000:.0f} kB"


def megabytes(count: float) -> str:
    return f"{count:.0f} MB"


def times(quotient: float) -> str:
    return f"{quotient:.2f} times"


def ratio(value: float, to: float) -> str:
    """Format the quotient of ``value`` and ``to``."""
    quotient = value / to if to else float("inf")
    return f"{quotient:.2f}" if quotient < 10 else f"{quotient:.0f}"


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()
