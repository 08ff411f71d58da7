"""Checks of amounts and durations, and sizes as shown to users."""

from __future__ import annotations

import re
from typing import Any, Final

from tradewind.text import truncated_repr

MAX_AMOUNT: Final = 2**63 - 1
"""The maximum that Ray and databases can count."""


def check_amount(value: Any, name: str, *, minimum: float = 0.0) -> None:
    """Refuse a value that is not a finite number of at least ``minimum``; None means no amount.

    Raises:
        ValueError: The value is invalid; the message begins with ``name``.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (is_number and minimum <= value <= MAX_AMOUNT):  # NaN fails too
        raise ValueError(f"{name} is {truncated_repr(value)}: give a finite number of at least {minimum:g}.")


def human_size(size: int) -> str:
    """Format a number of bytes for users."""
    amount, units = float(size), ["bytes", "kB", "MB", "GB", "TB", "PB"]
    while amount >= 999.5 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.3g} {units[0]}"


_SIZE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([kKMGTP]?)(i?)[bB]?")


def parse_size(value: Any, name: str) -> int:
    """Return a number of bytes, given as one or as ``"2GB"``, ``"512 MiB"`` or ``"1.5G"``.

    Raises:
        ValueError: The value is no size; the message begins with ``name``.
    """
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is not None:
        power = ["", "K", "M", "G", "T", "P"].index(match[2].upper())
        return int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is {truncated_repr(value)}: give a number of bytes, or a size such as '2GB'.")
    return value
