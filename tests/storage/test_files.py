"""Writes to a store are atomic, one of many processes creates an object, and reads, copies and lists are whole."""

from __future__ import annotations

import base64
import hashlib
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fsspec.core import url_to_fs

from tests.storage.s3_server import LocalS3, S3Object
from tradewind.datasets.files import atomic_writer
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest
from tradewind.storage.backends import StoreRefusedError
from tradewind.storage.bounded_read import Content, read_local
from tradewind.storage.copying import CopyRefusedError, DamagedCopyError, TargetOccupiedError, copy_file
from tradewind.storage.errors import LeaseLostError, StoreUnavailableError
from tradewind.storage.files import create_text, list_names, read_text, write_text
from tradewind.storage.filesystems import open_file
from tradewind.storage.trees import (
    StoredFile,
    list_files,
    read_files,
    reads_without_request,
    remove_files,
    stored_checksum,
)


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


def test_local_file_has_its_text_or_a_flaw(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("äöü")
    (tmp_path / "link").symlink_to("file")
    assert read_local(tmp_path / "link") == Content("äöü")
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
    for name in ("pipe", "."):
        with pytest.raises(OSError, match="it is no regular file"):
            open_file(str(tmp_path / name))


# ---- copies, complete and correct or none


def put_source(folder: str, text: str) -> StoredFile:
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
    copy(any_folder, put_source(any_folder, "text"), any_folder)
    assert [(file.path, file.size) for file in list_files(any_folder)] == [("from/x", 4), ("out/x", 4)]


def test_aborted_copy_leaves_nothing(any_folder: str) -> None:
    file, checks = put_source(any_folder, "x" * (3 << 20)), []

    def abort() -> None:
        checks.append(1)
        if len(checks) == 2 or any_folder.startswith("gs://"):
            raise LeaseLostError("over")

    with pytest.raises(LeaseLostError):
        copy(any_folder, file, any_folder, abort)
    assert [file.path for file in list_files(any_folder)] == ["from/x"]


def test_copy_refuses_changed_source_and_occupied_target(gcs: LocalCloudStorage, gs_folder: str) -> None:
    first, second = put_source(gs_folder, "first"), put_source(gs_folder, "other")
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
    file = put_source(gs_folder, "text")
    gcs.lost_answers = 1
    copy(gs_folder, file, gs_folder)
    assert gcs.lost_answers == 0
    assert listed(f"{gs_folder}/out").checksum == file.checksum


def test_lost_upload_is_store_error_and_not_missing_source(
    gcs: LocalCloudStorage, gs_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, answer = put_source(str(tmp_path), "text"), gcs.answer

    def refuse_parts(call: HttpRequest) -> Answer:
        return gcs.refusal("write", 404, "No such upload.") if "upload_id" in call.query else answer(call)

    monkeypatch.setattr(gcs, "answer", refuse_parts)
    with pytest.raises(StoreUnavailableError, match="parts/aside could not be written"):
        copy(str(tmp_path), file, gs_folder)


def test_multi_step_store_copy_is_awaited_until_complete(
    gcs: LocalCloudStorage, gs_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put_source(gs_folder, "0123456789")
    monkeypatch.setattr(gcs, "rewrite_bytes", 4)
    copy(gs_folder, file, gs_folder)
    assert gcs.requests["copy"] == 3
    assert listed(f"{gs_folder}/out").checksum == file.checksum


def test_corrupted_bytes_in_target_store_are_detected(
    s3: LocalS3, s3_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put_source(str(tmp_path), "text")
    bucket = s3_folder.removeprefix("s3://").partition("/")[0]

    class Lying(dict[str, S3Object]):
        """The objects of a bucket; each loses its last byte."""

        def __setitem__(self, key: str, found: S3Object) -> None:
            super().__setitem__(key, S3Object(found.data[:-1], found.written))

    s3.buckets[bucket] = Lying()
    with pytest.raises(DamagedCopyError, match=r"The copy of x was written with md5:.* and is md5:.* in its store"):
        copy(str(tmp_path), file, s3_folder)
    assert not s3.buckets[bucket]


# ---- files below a folder, the same on every store


@pytest.fixture
def folder(any_folder: str) -> str:
    return f"{any_folder}/out"


def put(folder: str, texts: dict[str, str]) -> None:
    for path, text in texts.items():
        write_text(f"{folder}/{path}", text)


def md5(text: str) -> str:
    return f"md5:{hashlib.md5(text.encode()).hexdigest()}"


def test_folder_listing_returns_all_paths_with_sizes(folder: str) -> None:
    paths = ["a-1", "a/.hidden", "a/deep/x.json", "b", "é [1]*"]
    put(folder, dict(zip(paths, paths, strict=True)))
    put(f"{folder}er", {"beside": "not below"})
    assert [(file.path, file.size) for file in list_files(folder)] == [(path, len(path.encode())) for path in paths]
    assert list_files(f"{folder}/") == list_files(folder)

    assert list_files(f"{folder}/nowhere") == list_files(f"{folder}/b") == []


def test_reading_files_returns_their_present_content(folder: str) -> None:
    put(folder, {"a": "one", "b": "x" * 3_000_000})
    listed = [*list_files(folder), StoredFile("gone since", 3)]
    put(folder, {"a": "other"})
    assert read_files(folder, listed) == [
        StoredFile("a", 5, md5("other")),
        StoredFile("b", 3_000_000, md5("x" * 3_000_000)),
    ]


def test_removal_uses_exact_names_and_skips_missing_files(folder: str) -> None:
    put(folder, dict.fromkeys(("a", "b/c", "b/d", "[ab]", "b/*"), "text"))
    remove_files(folder, ["[ab]", "b/*", "b/c", "b/nothing"])
    assert [file.path for file in list_files(folder)] == ["a", "b/d"]
    remove_files(folder, ["b/*", "b/c"])
    remove_files(folder, [])
    assert [file.path for file in list_files(folder)] == ["a", "b/d"]


@pytest.mark.slow
def test_cloud_listing_returns_checksums_and_pages_without_reads(cloud: LocalCloudStorage) -> None:
    fs, name = url_to_fs("gs://bucket/many")
    fs.pipe({f"{name}/{number:04}": b"x" for number in range(2500)})
    fs.pipe_file(f"{name}/folder/", b"")  # the cloud console makes folders like this
    cloud.requests.clear()
    assert list_files("gs://bucket/many") == [StoredFile(f"{number:04}", 1, md5("x")) for number in range(2500)]
    assert {*cloud.requests} == {"list"} and cloud.requests["list"] <= 3
    put("gs://bucket/many", {"late": "y"})
    assert "late" in {file.path for file in list_files("gs://bucket/many")}


def test_refused_or_failing_listing_is_not_empty(cloud: LocalCloudStorage, tmp_path: Path) -> None:
    cloud.failures, cloud.failure_status = 1, 403
    with pytest.raises(StoreRefusedError, match="gs://bucket/x: the store refuses access"):
        list_files("gs://bucket/x")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreUnavailableError, match="loop: the store fails"):
        list_files(str(tmp_path / "loop"))


def test_local_disks_and_memory_are_read_without_requests() -> None:
    assert all(map(reads_without_request, ("/mnt/shared/out", "file:///mnt/shared/out", "memory://out")))
    assert not reads_without_request("gs://bucket/out")


def test_folder_symlink_is_listed_as_file_and_never_followed(tmp_path: Path) -> None:
    put(str(tmp_path / "other"), {"data": "precious"})
    out = tmp_path / "out"
    out.mkdir()
    (out / "folder").symlink_to(tmp_path / "other")
    (out / "file").symlink_to(tmp_path / "other/data")
    (out / "dangling").symlink_to("nothing")
    (out / "circle").symlink_to("circle")
    os.mkfifo(out / "pipe")
    listed = list_files(str(out))
    assert [file.path for file in listed] == ["circle", "dangling", "file", "folder"]
    target = str(tmp_path / "other")
    assert read_files(str(out), listed) == [
        StoredFile("circle", 6, md5("circle")),
        StoredFile("dangling", 7, md5("nothing")),
        StoredFile("file", 8, md5("precious")),
        StoredFile("folder", len(target), md5(target)),
    ]
    remove_files(str(out), ["circle", "dangling", "file", "folder"])
    assert (tmp_path / "other/data").read_text() == "precious"
    assert list_files(str(out)) == []


def test_stored_checksum_is_parsed_from_listing_metadata() -> None:
    plain = hashlib.md5(b"x").hexdigest()
    in_base64 = base64.b64encode(hashlib.md5(b"x").digest()).decode()
    assert stored_checksum({"md5Hash": in_base64, "crc32c": "AAAAAA=="}) == md5("x")
    assert stored_checksum({"crc32c": "yZRlqg=="}) == "crc32c:yZRlqg=="  # Google Cloud Storage composed this object
    assert stored_checksum({"ETag": f'"{plain}"'}) == md5("x")
    assert stored_checksum({"ETag": f'"{plain}-3"'}) is None  # a client uploaded this object to S3 in parts
    assert stored_checksum({"name": "local", "size": 1}) is None
