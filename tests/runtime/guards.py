"""What a guard has heard of the term of its process."""

from __future__ import annotations

import os

from tradewind.runtime.driver.fencing import LeaseDeadline
from tradewind.runtime.driver.process_guard import ENDED, guard_offset


def noted_end(term: LeaseDeadline, guard: int) -> float | None:
    """From when on the end of this guard is the term's, as it has noted; infinite before it has heard of a term."""
    noted = os.pread(term.descriptor, ENDED.size, guard_offset(guard))
    return float(ENDED.unpack(noted)[0]) if noted else None
