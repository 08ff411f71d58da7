"""Writes to a store are atomic, and only one of many processes creates an object."""

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


def _create(path: str, text: str, results: multiprocessing.SimpleQueue[str]) -> None:
    if create_text(path, text):
        results.put(text)


@pytest.mark.slow
def test_one_of_many_processes_creates_a_text(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for round_number in range(20):
        results: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
        path = str(tmp_path / str(round_number))
        writers = [context.Process(target=_create, args=(path, str(n), results)) for n in range(8)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        winner = results.get()
        assert results.empty()
        assert read_text(path) == winner


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
