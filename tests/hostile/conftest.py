"""What the hostile cases share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    """A folder with ``work``, where a deed may write, and ``outside``, with files that nobody may touch."""
    (tmp_path / "own").mkdir()
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "treasure").write_text("not yours\n")
    (outside / "folder" / "more").write_text("nor this\n")
    return tmp_path


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two thousand deeds in processes of their own are not among the fast tests."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
