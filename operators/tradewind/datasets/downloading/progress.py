"""How far a download is, for the task log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from tradewind.steps.values.amounts import human_size

SECONDS_PER_LINE: Final = 10.0


class DownloadProgress:
    """Counts what has come, and prints it now and then; for many threads.

    Args:
        files: How many there will be.
        size_bytes: Of all; None if it is not known.
        clock: Seconds that only grow.
    """

    def __init__(self, files: int, size_bytes: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._all_files = files
        self._all_bytes = size_bytes
        self._clock = clock
        self._began = self._told = clock()
        self._lock = threading.Lock()
        self.files = 0
        self.bytes = 0
        self._kept_bytes = 0

    def count(self, files: int, size_bytes: int) -> None:
        """So many more are there; a whole file with its bytes was there before."""
        with self._lock:
            self.files += files
            self.bytes += size_bytes
            if files and size_bytes:
                self._kept_bytes += size_bytes
            now = self._clock()
            if now - self._told >= SECONDS_PER_LINE:
                self._told = now
                print(self.line(), flush=True)

    def line(self) -> str:
        """``12 of 40 files, 3.1 of 9.8 GB, 120.0 MB/s, 1 min left``."""
        seconds = max(self._clock() - self._began, 1e-3)
        rate = (self.bytes - self._kept_bytes) / seconds
        whole = f" of {human_size(self._all_bytes)}" if self._all_bytes is not None else ""
        done = f"{self.files} of {self._all_files} files"
        parts = [done, f"{human_size(self.bytes)}{whole}", f"{human_size(int(rate))}/s"]
        if self._all_bytes is not None and rate > 0 and self.bytes < self._all_bytes:
            parts.append(f"{(self._all_bytes - self.bytes) / rate / 60:.0f} min left")
        return ", ".join(parts)
