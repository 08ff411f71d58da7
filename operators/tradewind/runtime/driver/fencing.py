"""How long a turn is surely ours: who renews it says so, and the guards of its processes end them when that is over.

The term is a few bytes of memory that the guards share with its keeper, in the boot clock of their machine. It holds
until the last renewal is ``fence_s`` old, not until the last word of the keeper: a keeper that lives and cannot renew
prolongs nothing, and one that is frozen says nothing.
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
from types import FrameType, TracebackType
from typing import Final, NoReturn

from tradewind.records.lease import LeaseTimes
from tradewind.runtime.driver.process_guard import (
    ENDED,
    EXIT_DEADLINE,
    TERM,
    KernelTimer,
    adopt_orphans,
    boot_time,
    descendants,
    has_children,
    kill_descendants,
    place_of_guard,
)


class LeaseDeadline:
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


# A driver whose turn may be somebody else's ends at once, in whatever it was, and its children before it.
#
# The main thread may be in the middle of removing or writing files, with the store's own threads behind it; nothing of
# that may go on. So the process ends, without a word to the store. A driver that is frozen cannot do so: the kernel
# keeps a signal for it, so ending is what it does first when it thaws. Where the whole machine was suspended the guards
# of its children end by the kernel's hand at that moment, so what they guarded comes to this process and is ended by
# it. For the driver's own process only, never for one of Airflow's.

_CHILDREN_S: Final = 2.0
"""How long the guards have for what they do at once, unless they are frozen."""


_COULD_NOT_END: Final = "its lease could not be renewed in time, and this process, frozen or held up, ends only now"


class LeaseFence:
    """Ends this process and all that descends from it when its turn is over; made in the main thread.

    At the end of its block nothing is at work any more, and the process may take its time to leave.

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
        signal.signal(signal.SIGRTMAX, self._end_thawed)
        self._timer = KernelTimer(signal.SIGRTMAX)
        self._shown = os.dup(1)  # whatever becomes of standard output later
        self.term = LeaseDeadline()

    def __enter__(self) -> LeaseFence:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.set(math.inf)  # Python forgets its handlers first when it leaves: the signal would be the exit code

    def renewed(self, at: float) -> None:
        """Count from ``at`` by the boot clock, the last renewal; from infinity once the turn has ended."""
        killed_at = at + self._times.kill_s
        self.term.set(at + self._times.fence_s, killed_at)
        self._timer.set(killed_at)

    def end(self, why: str) -> NoReturn:
        """End now."""
        self.term.set(-math.inf)
        deadline = time.monotonic() + _CHILDREN_S
        while descendants(os.getpid()) and time.monotonic() < deadline:
            time.sleep(0.01)
        last_line = self._last_line if kill_descendants(os.getpid()) else ""
        os.write(self._shown, _last_words(why, last_line))
        os._exit(EXIT_DEADLINE)

    def _end_thawed(self, signum: int, frame: FrameType | None) -> NoReturn:
        """End what descends from this process, and this process; at once where it has no child and so may be writing.

        What it says first waits for nobody.
        """
        last_line = self._last_line if not has_children() or kill_descendants(os.getpid()) else ""
        if select.select([], [self._shown], [], 0)[1]:
            os.write(self._shown, _last_words(_COULD_NOT_END, last_line))
        os._exit(EXIT_DEADLINE)


def _last_words(why: str, last_line: str) -> bytes:
    return f"This attempt ends here, because {why}: its output does not count.\n{last_line}\n".encode()
