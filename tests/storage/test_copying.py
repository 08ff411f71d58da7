"""Copying a file creates a complete, correct copy or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.s3_server import LocalS3, S3Object
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest
from tradewind.storage.copying import CopyRefusedError, DamagedCopyError, TargetOccupiedError, copy_file
from tradewind.storage.errors import LeaseLostError, StoreUnavailableError
from tradewind.storage.files import read_text, write_text
from tradewind.storage.trees import StoredFile, list_files, remove_files


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
