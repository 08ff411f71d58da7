"""How long a turn is surely ours: who renews it says so, and the guards of its processes end them when that is over.

The term is a few bytes of memory that the guards share with its keeper, in the boot clock of their machine. It holds
until the last renewal is ``fence_s`` old, not until the last word of the keeper: a keeper that lives and cannot renew
prolongs nothing, and one that is frozen says nothing.
"""

from __future__ import annotations

import math
import os

from tradewind.runtime.driver.process_guard import ENDED, TERM, boot_time, place_of_guard


class Term:
    """One term; it has no end until it is given one."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("term")
        self._end = math.inf
        self._write(math.inf, math.inf)

    def set(self, end: float, killed_at: float = math.inf) -> None:
        """Let it end then; a guard that is frozen then is killed at ``killed_at`` by the kernel.

        One that is over stays over: what worked in it is ended, or about to be, and not for a fault of its own.
        """
        if not self.is_over:
            self._end = end
            self._write(end, killed_at)

    @property
    def is_over(self) -> bool:
        """Whether it is over by now."""
        return boot_time() >= self._end

    def has_ended(self, guard: int) -> bool:
        """Whether its end was that of this guard, which has ended, and of what it had in its hands.

        Also that of a guard that was frozen and could not see that the term was prolonged: the kernel has killed it.
        """
        noted = os.pread(self.descriptor, ENDED.size, place_of_guard(guard))
        return len(noted) == ENDED.size and boot_time() >= ENDED.unpack(noted)[0]

    def _write(self, end: float, killed_at: float) -> None:
        os.pwrite(self.descriptor, TERM.pack(end, killed_at, end), 0)
