"""Checks of amounts and durations, and sizes as shown to users."""

from __future__ import annotations

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
