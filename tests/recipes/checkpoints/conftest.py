"""Fixture: a checkpoint folder, on a local disk and on Cloud Storage."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["local", "gs"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path)
    request.getfixturevalue("cloud")
    return f"gs://bucket/{tmp_path.name}"
