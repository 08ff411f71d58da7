"""A moment of the driver's clock on a host's clock, and never too late there: hosts count from it when to end.

Both are boot clocks, which differ by any amount, and a message may take any time. What a host reports was true before
the driver received it, so the host's clock showed no less than that when the driver's showed the time of receipt.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HostClock:
    """What a host's clock showed when the host reported it, and what ours showed when we received it."""

    sent_at: float
    received_at: float

    def at_least(self, moment: float) -> float:
        """What the host's clock showed at ``moment`` of ours, or less."""
        return moment + self.sent_at - self.received_at
