"""Sync a mirrored path, killed after a number of copied files.

Arguments: ``NAME PREFIX SOURCE FILES HEARTBEAT``.
"""

from __future__ import annotations

import os
import signal
import sys
from threading import Lock
from typing import Any

from tests.runtime.regions import mirror_of, sync
from tradewind.runtime import mirror_copies

if __name__ == "__main__":
    name, prefix, source, most, heartbeat = sys.argv[1:]
    lock, real = Lock(), mirror_copies.copy_file
    done = 0

    def copy_file(*args: Any) -> None:
        global done
        with lock:  # copy serially, so that exactly FILES files are complete
            if done == int(most):
                os.kill(os.getpid(), signal.SIGKILL)
            real(*args)
            done += 1

    mirror_copies.copy_file = copy_file
    sync(mirror_of(name, prefix, source), heartbeat_s=float(heartbeat), by="killed")
