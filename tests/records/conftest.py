from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem


@pytest.fixture
def prefix(any_prefix: str) -> str:
    return any_prefix


@pytest.fixture(params=["local", "memory"])
def local_prefix(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return an empty folder on a disk and in memory."""
    MemoryFileSystem.store.clear()
    yield str(tmp_path) if request.param == "local" else "memory://records"
    MemoryFileSystem.store.clear()
