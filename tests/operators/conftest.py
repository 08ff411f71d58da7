from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.operators.loopback_head import LoopbackHead


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHead]:
    with LoopbackHead().connected(monkeypatch) as head:
        yield head
