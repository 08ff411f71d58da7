"""Local files that a user named are read whole only if they are regular, small and text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tradewind.storage.bounded_read import Content, read_local


def test_local_text_is_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("äöü")
    (tmp_path / "link").symlink_to("file")
    assert read_local(tmp_path / "link") == Content("äöü")


def test_local_file_that_is_no_small_text_has_a_flaw(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text("12345")
    (tmp_path / "latin").write_bytes(b"\xe4")
    flaws = {name: read_local(tmp_path / name, 4).flaw for name in ("pipe", "large", "latin", ".")}
    assert flaws == {
        "pipe": "it is no regular file",
        "large": "it has more than 4 bytes",
        "latin": "it is no text (not UTF-8)",
        ".": "it is a folder",
    }
    with pytest.raises(FileNotFoundError):
        read_local(tmp_path / "absent")
