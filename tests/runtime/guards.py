"""Read the lease deadline that a process guard has noted."""

from __future__ import annotations

import os

from tradewind.runtime.driver.fencing import LeaseDeadline
from tradewind.runtime.driver.process_guard import ENDED, guard_offset


def noted_end(term: LeaseDeadline, guard: int) -> float | None:
    """Return the time from which this guard's exit counts as fencing.

    The time is infinite before the guard reads a deadline, and None before the guard writes a note.
    """
    noted = os.pread(term.descriptor, ENDED.size, guard_offset(guard))
    return float(ENDED.unpack(noted)[0]) if noted else None
