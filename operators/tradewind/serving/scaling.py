"""How many engines a pool wants: more while requests wait, fewer once the others would have room for all."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tradewind.serving.config import PoolLimits


@dataclass
class Scaler:
    """The number of engines that a pool wants, within its limits."""

    minimum: int
    maximum: int
    max_concurrent: int
    limits: PoolLimits
    wanted: int = 0
    _busy_since: float | None = None
    _spare_since: float | None = None

    def __post_init__(self) -> None:
        self.wanted = max(self.minimum, min(self.wanted, self.maximum))

    def decide(self, now: float, *, queued: int, in_flight: int, ready: int) -> int:
        """Return how many engines the pool wants; it is called all the time.

        It wants no further one while one that it wants is not ``ready``.
        """
        needed = math.ceil((queued + in_flight) / self.max_concurrent)
        is_short = queued > 0 and ready >= self.wanted and self.wanted < self.maximum
        is_spare = queued == 0 and needed < self.wanted and self.wanted > self.minimum
        self._busy_since = _since(self._busy_since, now) if is_short else None
        self._spare_since = _since(self._spare_since, now) if is_spare else None
        if self._busy_since is not None and now - self._busy_since >= self.limits.queue_s:
            self.wanted = min(self.maximum, max(needed, self.wanted + 1))
            self._busy_since = None
        elif self._spare_since is not None and now - self._spare_since >= self.limits.spare_s:
            self.wanted -= 1
            self._spare_since = now
        return self.wanted


def _since(before: float | None, now: float) -> float:
    return now if before is None else before
