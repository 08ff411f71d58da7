"""How many engines a pool wants: more while requests wait, fewer once the others would have room for all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

UP_S: Final = 5.0
"""How long requests must wait before the pool grows: a queue that is soon empty needs no engine."""
DOWN_S: Final = 120.0
"""How long an engine must be spare before it ends: its start may take minutes."""


@dataclass
class Scaler:
    """The number of engines that a pool wants, within its limits."""

    minimum: int
    maximum: int
    max_concurrent: int
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
        is_short = queued > 0 and ready >= self.wanted
        self._busy_since = None if not is_short else self._busy_since if self._busy_since is not None else now
        is_spare = needed < self.wanted and not queued
        self._spare_since = None if not is_spare else self._spare_since if self._spare_since is not None else now
        if self._busy_since is not None and now - self._busy_since >= UP_S and self.wanted < self.maximum:
            self.wanted = min(self.maximum, max(needed, self.wanted + 1))
            self._busy_since = None
        elif self._spare_since is not None and now - self._spare_since >= DOWN_S and self.wanted > self.minimum:
            self.wanted = max(self.minimum, self.wanted - 1)
            self._spare_since = now
        return self.wanted
