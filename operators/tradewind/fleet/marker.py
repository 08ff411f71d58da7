"""Old place of names in ``tradewind.fleet.lock``; the documentation names it."""

from __future__ import annotations

from tradewind.fleet.lock import ClusterBusyError, InterruptedOperationError, MarkerLostError

__all__ = ["ClusterBusyError", "InterruptedOperationError", "MarkerLostError"]
