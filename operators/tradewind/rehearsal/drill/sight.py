"""Old place of names in ``tradewind.rehearsal.drill.observer``; the documentation names it."""

from __future__ import annotations

from tradewind.rehearsal.drill.observer import DrillTimeoutError

__all__ = ["DrillTimeoutError"]
