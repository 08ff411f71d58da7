"""Fixtures of the hostile tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    """A folder with ``own``, where a call may write, and ``outside``, whose files no call may change."""
    (tmp_path / "own").mkdir()
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "treasure").write_text("not yours\n")
    (outside / "folder" / "more").write_text("nor this\n")
    return tmp_path


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Exclude these tests from the fast tests: they make two thousand calls in separate processes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
