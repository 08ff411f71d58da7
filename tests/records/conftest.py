from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem


@pytest.fixture(params=["local", "memory", "gs"])
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return an empty folder on a disk, in memory and in a bucket."""
    if request.param == "gs":
        request.getfixturevalue("cloud")
        return f"gs://bucket/{tmp_path.name}"
    return str(tmp_path / "store") if request.param == "local" else f"memory://{tmp_path.name}"


@pytest.fixture(params=["local", "memory"])
def local_prefix(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return an empty folder on a disk and in memory."""
    MemoryFileSystem.store.clear()
    yield str(tmp_path) if request.param == "local" else "memory://records"
    MemoryFileSystem.store.clear()
