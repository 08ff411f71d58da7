"""Old place of names in ``tradewind.rehearsal.drill.environment``; the documentation names it."""

from __future__ import annotations

from tradewind.rehearsal.drill.environment import DrillHouseError

__all__ = ["DrillHouseError"]
