"""Prefixes of the outputs of a test, one for each store."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture(params=["local", "memory", "gs"])
def any_prefix(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "gs":
        request.getfixturevalue("cloud")
        return f"gs://bucket/{tmp_path.name}"
    return str(tmp_path / "store") if request.param == "local" else f"memory://{tmp_path.name}-garbage"
