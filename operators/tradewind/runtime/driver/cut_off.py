"""A driver whose turn may be somebody else's ends at once, in whatever it was, and its children before it.

The main thread may be in the middle of removing or writing files, with the store's own threads behind it; nothing of
that may go on. So the process ends, without a word to the store. A driver that is frozen cannot do so: the kernel keeps
a signal for it, so ending is what it does first when it thaws. Where the whole machine was suspended the guards of its
children end by the kernel's hand at that moment, so what they guarded comes to this process and is ended by it. For the
driver's own process only, never for one of Airflow's.
"""

from __future__ import annotations

import math
import os
import signal
import time
from types import FrameType
from typing import Final, NoReturn

from tradewind.records.leases.times import LeaseTimes
from tradewind.runtime.driver.process_guard import (
    TERM_OVER,
    KernelTimer,
    adopt_orphans,
    descendants,
    has_children,
    kill_descendants,
)
from tradewind.runtime.driver.term import Term

_CHILDREN_S: Final = 2.0
"""How long the guards have for what they do at once, unless they are frozen."""


class CutOff:
    """Ends this process and all that descends from it when its turn is over; made in the main thread.

    Args:
        times: Of the lease.
        last_line: Printed last, unless something that this process has started lives on.

    Attributes:
        term: The guards of the children look at it.
    """

    def __init__(self, times: LeaseTimes, last_line: str) -> None:
        self._times = times
        self._last_line = last_line
        adopt_orphans()
        signal.signal(signal.SIGRTMAX, _end_thawed)
        self._timer = KernelTimer(signal.SIGRTMAX)
        self._shown = os.dup(1)  # whatever becomes of standard output later
        self.term = Term()

    def renewed(self, at: float) -> None:
        """Count from ``at`` by the boot clock, the last renewal; from infinity once the turn has ended."""
        killed_at = at + self._times.killed_s
        self.term.set(at + self._times.fence_s, killed_at)
        self._timer.set(killed_at)

    def end(self, why: str) -> NoReturn:
        """End now."""
        self.term.set(-math.inf)
        deadline = time.monotonic() + _CHILDREN_S
        while descendants(os.getpid()) and time.monotonic() < deadline:
            time.sleep(0.01)
        last_line = self._last_line if kill_descendants(os.getpid()) else ""
        why = f"This attempt ends here, because {why}: its output does not count."
        os.write(self._shown, f"{why}\n{last_line}\n".encode())
        os._exit(TERM_OVER)


def _end_thawed(signum: int, frame: FrameType | None) -> NoReturn:
    """End what descends from this process, and this process; at once where it has no child and so may be writing."""
    if has_children():
        kill_descendants(os.getpid())
    os._exit(TERM_OVER)
