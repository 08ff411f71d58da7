"""Fencing of a lease owner: deadline in shared memory for its children's guards, and the end of the driver itself.

The deadline is a few bytes that the lease owner shares with the process guards, by their machine's boot clock. It
passes when the last renewal is ``fence_s`` old. An owner that is alive but cannot renew does not move it, and neither
does a frozen one.

A driver that may have lost its lease ends at once, after its children, whatever it is doing. Its main thread may be
removing or writing files, with threads of the store behind it, and none of that may continue. So the process exits
without another call to the store. A frozen driver cannot do so: the kernel holds a signal for it, which it handles
first when it thaws. If the whole machine was suspended, the kernel kills the guards at that moment, and the driver
adopts and kills their processes. Only the driver's own process may use this fence, never one of Airflow.
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
    DEADLINE,
    ENDED,
    EXIT_DEADLINE,
    KernelTimer,
    adopt_orphans,
    boot_time,
    descendants,
    guard_offset,
    has_children,
    kill_descendants,
)

_CHILDREN_S: Final = 2.0
"""How long the guards have to kill their commands, unless they are frozen."""
_COULD_NOT_END: Final = "its lease could not be renewed in time, and this process, frozen or held up, ends only now"


class LeaseDeadline:
    """Deadline in shared memory; at infinity until it is set."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("lease-deadline")
        self._end = math.inf
        self._write(math.inf, math.inf)

    def set(self, end: float, killed_at: float = math.inf) -> None:
        """Move the deadline to ``end``; the kernel kills a guard that is frozen then at ``killed_at``.

        A deadline that has passed stays passed: its processes are killed, or about to be.
        """
        if not self.is_over:
            self._end = end
            self._write(end, killed_at)

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return boot_time() >= self._end

    def has_ended(self, guard: int) -> bool:
        """Whether the deadline ended this guard, which has exited, and its command.

        True also for a guard that the kernel killed because it was frozen and missed a renewal.
        """
        noted = os.pread(self.descriptor, ENDED.size, guard_offset(guard))
        return len(noted) == ENDED.size and boot_time() >= ENDED.unpack(noted)[0]

    def _write(self, end: float, killed_at: float) -> None:
        os.pwrite(self.descriptor, DEADLINE.pack(end, killed_at, end), 0)


class LeaseFence:
    """Ends this process and its descendants when it may have lost its lease; made in the main thread.

    At the end of its block no work is left, and the process may exit in its own time.

    Args:
        times: Of the lease.
        last_line: Printed last, unless a process that this one started survives.

    Attributes:
        deadline: For the guards of the children.
    """

    def __init__(self, times: LeaseTimes, last_line: str) -> None:
        self._times = times
        self._last_line = last_line
        adopt_orphans()
        signal.signal(signal.SIGRTMAX, self._end_thawed)
        self._timer = KernelTimer(signal.SIGRTMAX)
        self._stdout = os.dup(1)  # standard output may be redirected later
        self.deadline = LeaseDeadline()

    def __enter__(self) -> LeaseFence:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.set(math.inf)  # at exit Python drops its handlers first, so the signal would kill this process

    def note_renewal(self, at: float) -> None:
        """Count from ``at``, the last renewal by the boot clock; infinity once the lease has ended."""
        killed_at = at + self._times.kill_s
        self.deadline.set(at + self._times.fence_s, killed_at)
        self._timer.set(killed_at)

    def end(self, why: str) -> NoReturn:
        """Kill all descendants, print ``why`` and exit now."""
        self.deadline.set(-math.inf)
        deadline = time.monotonic() + _CHILDREN_S
        while descendants(os.getpid()) and time.monotonic() < deadline:
            time.sleep(0.01)
        last_line = self._last_line if kill_descendants(os.getpid()) else ""
        os.write(self._stdout, _last_words(why, last_line))
        os._exit(EXIT_DEADLINE)

    def _end_thawed(self, signum: int, frame: FrameType | None) -> NoReturn:
        """Kill all descendants and exit; at once without children, since this process may be writing then.

        It prints only if that cannot block.
        """
        last_line = self._last_line if not has_children() or kill_descendants(os.getpid()) else ""
        if select.select([], [self._stdout], [], 0)[1]:
            os.write(self._stdout, _last_words(_COULD_NOT_END, last_line))
        os._exit(EXIT_DEADLINE)


def _last_words(why: str, last_line: str) -> bytes:
    return f"This attempt ends here, because {why}: its output does not count.\n{last_line}\n".encode()
