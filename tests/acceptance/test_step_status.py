"""Requirement of Marin's own ``test_step_status.py``: a reader sees the old or the new status, whole."""

from __future__ import annotations

import threading
from pathlib import Path

from tradewind.records.record import Status, read_status, write_status


def test_status_read_tolerates_concurrent_overwrite(tmp_path: Path) -> None:
    output, done = str(tmp_path / "out"), threading.Event()
    write_status(output, Status.RUNNING)

    def overwrite() -> None:
        while not done.is_set():
            for status in (Status.SUCCESS, Status.RUNNING):
                write_status(output, status)

    writer = threading.Thread(target=overwrite)
    writer.start()
    read: list[Status | None] = []
    try:
        while len(read) < 500 or len(set(read)) == 1:  # a busy machine may run only one of the threads for a while
            read.append(read_status(output))
    finally:
        done.set()
        writer.join()
    assert set(read) == {Status.SUCCESS, Status.RUNNING}
