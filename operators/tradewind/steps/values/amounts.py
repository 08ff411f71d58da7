"""Numbers that can be waited for or counted to."""

from __future__ import annotations

from typing import Any, Final

from tradewind.steps.values.shortened import shortened

MOST: Final = 2**63 - 1
"""More than this, neither Ray nor a database can count."""


def check_amount(value: Any, name: str, *, least: float = 0.0) -> None:
    """Refuse what is no finite number of at least ``least``; None stands for no amount at all.

    Raises:
        ValueError: With a sentence that begins with ``name``.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (is_number and least <= value <= MOST):  # NaN is neither
        raise ValueError(f"{name} is {shortened(value)}: give a finite number of at least {least:g}.")
