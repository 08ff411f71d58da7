"""Folders of the acceptance tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(tmp_path / "calls.jsonl")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"
