"""Progress lines of a tokenization in the task log."""

from __future__ import annotations

import threading

import pytest

from tradewind.datasets import tokenization
from tradewind.datasets.tokenization import TokenizingProgress


def test_progress_rates_and_time_left_cover_only_this_attempt() -> None:
    now = [0.0]
    counted = TokenizingProgress(4, 10_000_000, lambda: now[0])
    counted.count(4_000_000, 50, 900, was_there=True)
    now[0] = 100.0
    assert counted.line() == "1 of 4 files, 4 MB of 10 MB, 50 documents, 900 tokens, 0 bytes/s, 0 documents/s"
    counted.count(2_000_000, 200, 4_000)
    told = "2 of 4 files, 6 MB of 10 MB, 250 documents, 4,900 tokens, 20 kB/s, 2 documents/s, 3 min left"
    assert counted.line() == told


def test_progress_printed_while_no_file_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    twice = threading.Event()

    def tell(line: str, flush: bool) -> None:
        told.append(line)
        if len(told) == 2:
            twice.set()

    monkeypatch.setattr(tokenization, "SECONDS_PER_LINE", 0.01)
    monkeypatch.setattr(tokenization, "print", tell, raising=False)
    with TokenizingProgress(1, 1):
        assert twice.wait(60)
    assert told[0].startswith("0 of 1 files")
