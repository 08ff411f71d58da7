"""Writes to a store are atomic, one of many processes creates an object, and reads and copies are whole or refused."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.storage.s3_server import LocalS3, S3Object
from tradewind.datasets.files import atomic_writer
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest
from tradewind.storage.bounded_read import Content, read_local
from tradewind.storage.copying import CopyRefusedError, DamagedCopyError, TargetOccupiedError, copy_file
from tradewind.storage.errors import LeaseLostError, StoreUnavailableError
from tradewind.storage.files import create_text, list_names, read_text, write_text
from tradewind.storage.trees import StoredFile, list_files, remove_files


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


# ---- copies, complete and correct or none


def put(folder: str, text: str) -> StoredFile:
    """Write the file to copy, and return its listing."""
    write_text(f"{folder}/from/x", text)
    return listed(f"{folder}/from")


def listed(folder: str) -> StoredFile:
    (file,) = list_files(folder)
    return file


def copy(folder: str, file: StoredFile, to: str, check: Callable[[], object] = lambda: None) -> None:
    copy_file(f"{folder}/from", file, f"{to}/out/x", f"{to}/parts/aside", check)


@pytest.mark.slow
def test_copy_leaves_no_temporary_file(any_folder: str) -> None:
    copy(any_folder, put(any_folder, "text"), any_folder)
    assert [(file.path, file.size) for file in list_files(any_folder)] == [("from/x", 4), ("out/x", 4)]


def test_aborted_copy_leaves_nothing(any_folder: str) -> None:
    file, checks = put(any_folder, "x" * (3 << 20)), []

    def abort() -> None:
        checks.append(1)
        if len(checks) == 2 or any_folder.startswith("gs://"):
            raise LeaseLostError("over")

    with pytest.raises(LeaseLostError):
        copy(any_folder, file, any_folder, abort)
    assert [file.path for file in list_files(any_folder)] == ["from/x"]


def test_copy_refuses_changed_source_and_occupied_target(gcs: LocalCloudStorage, gs_folder: str) -> None:
    first, second = put(gs_folder, "first"), put(gs_folder, "other")
    with pytest.raises(CopyRefusedError, match="has changed, or is gone"):
        copy(gs_folder, first, gs_folder)
    write_text(f"{gs_folder}/out/x", "theirs")
    with pytest.raises(TargetOccupiedError, match="Another process has written"):
        copy(gs_folder, second, gs_folder)
    remove_files(f"{gs_folder}/from", ["x"])
    with pytest.raises(CopyRefusedError):
        copy(gs_folder, second, gs_folder)
    assert read_text(f"{gs_folder}/out/x") == "theirs"


@pytest.mark.slow
def test_copy_with_lost_response_is_recognized(gcs: LocalCloudStorage, gs_folder: str) -> None:
    file = put(gs_folder, "text")
    gcs.lost_answers = 1
    copy(gs_folder, file, gs_folder)
    assert gcs.lost_answers == 0
    assert listed(f"{gs_folder}/out").checksum == file.checksum


def test_lost_upload_is_store_error_and_not_missing_source(
    gcs: LocalCloudStorage, gs_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, answer = put(str(tmp_path), "text"), gcs.answer

    def refuse_parts(call: HttpRequest) -> Answer:
        return gcs.refusal("write", 404, "No such upload.") if "upload_id" in call.query else answer(call)

    monkeypatch.setattr(gcs, "answer", refuse_parts)
    with pytest.raises(StoreUnavailableError, match="parts/aside could not be written"):
        copy(str(tmp_path), file, gs_folder)


def test_multi_step_store_copy_is_awaited_until_complete(
    gcs: LocalCloudStorage, gs_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(gs_folder, "0123456789")
    monkeypatch.setattr(gcs, "rewrite_bytes", 4)
    copy(gs_folder, file, gs_folder)
    assert gcs.requests["copy"] == 3
    assert listed(f"{gs_folder}/out").checksum == file.checksum


def test_corrupted_bytes_in_target_store_are_detected(
    s3: LocalS3, s3_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(str(tmp_path), "text")
    bucket = s3_folder.removeprefix("s3://").partition("/")[0]

    class Lying(dict[str, S3Object]):
        """The objects of a bucket; each loses its last byte."""

        def __setitem__(self, key: str, found: S3Object) -> None:
            super().__setitem__(key, S3Object(found.data[:-1], found.written))

    s3.buckets[bucket] = Lying()
    with pytest.raises(DamagedCopyError, match=r"The copy of x was written with md5:.* and is md5:.* in its store"):
        copy(str(tmp_path), file, s3_folder)
    assert not s3.buckets[bucket]
