"""How far a tokenization is, for the task log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from tradewind.steps.values.amounts import human_size

SECONDS_PER_LINE: Final = 15.0


class TokenizingProgress:
    """Counts what is done and says it now and then, as long as a ``with`` block lasts; also while nothing ends.

    Args:
        files: How many there are.
        size_bytes: Of all, as they lie in their store.
        clock: Seconds that only grow.
    """

    def __init__(self, files: int, size_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._all_files = files
        self._all_bytes = size_bytes
        self._clock = clock
        self._began = clock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="tokenizing-progress", daemon=True)
        self.files = self.bytes = self.documents = self.tokens = 0
        self._kept_bytes = self._kept_documents = 0

    def __enter__(self) -> TokenizingProgress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def count(
        self, size_bytes: int, documents: int, tokens: int, *, was_there: bool = False, ends_file: bool = True
    ) -> None:
        """One more file, or piece of one, is done, or was at the start."""
        self.files += ends_file
        self.bytes += size_bytes
        self.documents += documents
        self.tokens += tokens
        if was_there:
            self._kept_bytes += size_bytes
            self._kept_documents += documents

    def line(self) -> str:
        """``12 of 40 files, 3.1 of 9.8 GB, 1,200 documents, 50,000 tokens, 12 MB/s, 31 documents/s, 9 min left``."""
        seconds = max(self._clock() - self._began, 1e-3)
        rate = (self.bytes - self._kept_bytes) / seconds
        parts = [
            f"{self.files:,} of {self._all_files:,} files",
            f"{human_size(self.bytes)} of {human_size(self._all_bytes)}",
            f"{self.documents:,} documents",
            f"{self.tokens:,} tokens",
            f"{human_size(int(rate))}/s",
            f"{(self.documents - self._kept_documents) / seconds:,.0f} documents/s",
        ]
        if rate > 0 and self.bytes < self._all_bytes:
            parts.append(f"{(self._all_bytes - self.bytes) / rate / 60:.0f} min left")
        return ", ".join(parts)

    def _tell(self) -> None:
        while not self._is_over.wait(SECONDS_PER_LINE):
            print(self.line(), flush=True)
