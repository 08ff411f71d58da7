"""Texts of others as a page shows them."""

from __future__ import annotations

from html import escape
from typing import Final

LONGEST_TEXT: Final = 4_000
"""What a page shows of a text. Whoever writes XComs decides what is in them, and a browser lays all of it out."""


def escaped(text: str, most: int = LONGEST_TEXT) -> str:
    """``text`` as HTML, and no more of it than somebody would read."""
    return escape(text if len(text) <= most else f"{text[:most]}…")
