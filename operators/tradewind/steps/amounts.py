"""Numbers that can be waited for or counted to, and sizes as people read them."""

from __future__ import annotations

from typing import Any, Final

from tradewind.text import truncated_repr

MAX_AMOUNT: Final = 2**63 - 1
"""More than this, neither Ray nor a database can count."""


def check_amount(value: Any, name: str, *, least: float = 0.0) -> None:
    """Refuse what is no finite number of at least ``least``; None stands for no amount at all.

    Raises:
        ValueError: With a sentence that begins with ``name``.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (is_number and least <= value <= MAX_AMOUNT):  # NaN is neither
        raise ValueError(f"{name} is {truncated_repr(value)}: give a finite number of at least {least:g}.")


def human_size(size: int) -> str:
    """A number of bytes as people read it."""
    amount, units = float(size), ["bytes", "kB", "MB", "GB", "TB", "PB"]
    while amount >= 999.5 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.3g} {units[0]}"
