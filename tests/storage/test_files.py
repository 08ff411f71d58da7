"""Writes to a store are atomic, one of many processes creates an object, and reads of local files are bounded."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tradewind.datasets.files import atomic_writer
from tradewind.storage.bounded_read import Content, read_local
from tradewind.storage.errors import StoreUnavailableError
from tradewind.storage.files import create_text, list_names, read_text, write_text


def test_written_text_is_read_and_missing_one_is_none(any_folder: str) -> None:
    path = f"{any_folder}/deep/down/x"
    assert read_text(path) is None and list_names(f"{any_folder}/deep/down") == []
    assert create_text(path, "first") and not create_text(path, "second")
    assert read_text(path) == "first"
    write_text(path, "äöü")
    assert read_text(path) == "äöü"
    assert list_names(f"{any_folder}/deep/down") == ["x"]


@pytest.mark.slow
def test_one_of_many_processes_creates_a_text(tmp_path: Path) -> None:
    pool = multiprocessing.get_context("fork").Pool(8)
    for path in (str(tmp_path / str(number)) for number in range(20)):
        created = pool.starmap(create_text, [(path, str(n)) for n in range(8)], chunksize=1)
        assert created.count(True) == 1
        assert read_text(path) == str(created.index(True))
    # Not terminate(), which `with` calls: a forked worker has pytest's handler of SIGTERM, written in Python, and one
    # that is just about to wait for a lock runs it only when it gets the lock, which terminate() holds.
    pool.close()
    pool.join()


def _write_for_ever(path: str) -> None:
    for number in range(10**9):
        write_text(path, str(number % 10) * 200_000)


@pytest.mark.slow
def test_killed_writer_leaves_a_complete_file(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    for _ in range(5):
        writer = multiprocessing.get_context("fork").Process(target=_write_for_ever, args=(path,))
        writer.start()
        deadline = time.monotonic() + 30
        while read_text(path) is None and time.monotonic() < deadline:
            os.sched_yield()
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        text = read_text(path)
        assert text is not None and len(text) == 200_000 and len(set(text)) == 1


@contextmanager
def full_disk(after_bytes: int) -> Iterator[None]:
    """Limit file sizes of this process; the system then reports the same error as for a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_leaves_no_partial_file_and_error_names_file(tmp_path: Path) -> None:
    path = f"{tmp_path}/record.json"
    with full_disk(5_000), pytest.raises(StoreUnavailableError, match=f"^{path}: the store fails: .*File too large"):
        write_text(path, "x" * 100_000)
    assert list(tmp_path.iterdir()) == []
    with full_disk(5_000), pytest.raises(OSError, match=f"File too large: '{path}'"), atomic_writer(path) as file:
        file.write(bytes(100_000))
    assert list(tmp_path.iterdir()) == []


# ---- local files that a user named


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
