"""Escape untrusted texts for a page."""

from __future__ import annotations

from html import escape
from typing import Final

LONGEST_TEXT: Final = 4_000
"""Characters of a text that a page shows. Any task can write long XComs, and the browser renders all of it."""


def escaped(text: str, most: int = LONGEST_TEXT) -> str:
    """Escape at most ``most`` characters of ``text`` for HTML."""
    return escape(text if len(text) <= most else f"{text[:most]}…")
