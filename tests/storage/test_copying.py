"""Copying a file creates a complete, correct copy or none."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.s3_server import LocalS3, S3Object
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest
from tradewind.storage import file_system_at
from tradewind.storage.copying import CopyRefusedError, DamagedCopyError, TargetOccupiedError, copy_file
from tradewind.storage.errors import LeaseLostError, StoreUnavailableError
from tradewind.storage.trees import StoredFile, list_files


def put(path: str, text: bytes) -> None:
    fs, name = file_system_at(path)
    fs.makedirs(posixpath.dirname(name), exist_ok=True)
    fs.pipe_file(name, text)


def listed(folder: str) -> StoredFile:
    (file,) = list_files(folder)
    return file


def go_on() -> None: ...


def copy(folder: str, file: StoredFile, to: str, ask: Callable[[], object] = go_on) -> None:
    copy_file(folder, file, f"{to}/out/x", f"{to}/parts/aside", ask)


@pytest.mark.slow
def test_a_copy_leaves_nothing_beside_it(any_folder: str) -> None:
    put(f"{any_folder}/from/x", b"text")
    copy(f"{any_folder}/from", listed(f"{any_folder}/from"), any_folder)
    assert [(file.path, file.size) for file in list_files(any_folder)] == [("from/x", 4), ("out/x", 4)]


def test_a_copy_that_is_to_end_half_way_leaves_nothing(any_folder: str) -> None:
    put(f"{any_folder}/from/x", b"x" * (3 << 20))
    file, asked = listed(f"{any_folder}/from"), []

    def ends() -> None:
        asked.append(1)
        if len(asked) == 2 or any_folder.startswith("gs://"):
            raise LeaseLostError("over")

    with pytest.raises(LeaseLostError):
        copy(f"{any_folder}/from", file, any_folder, ends)
    assert [file.path for file in list_files(any_folder)] == ["from/x"]


def test_copy_refuses_changed_source_and_occupied_target(gcs: LocalCloudStorage, gs_folder: str) -> None:
    put(f"{gs_folder}/from/x", b"first")
    first = listed(f"{gs_folder}/from")
    put(f"{gs_folder}/from/x", b"other")
    with pytest.raises(CopyRefusedError, match="has changed, or is gone"):
        copy(f"{gs_folder}/from", first, gs_folder)
    put(f"{gs_folder}/out/x", b"theirs")
    with pytest.raises(TargetOccupiedError, match="Another process has written"):
        copy(f"{gs_folder}/from", listed(f"{gs_folder}/from"), gs_folder)
    fs, name = file_system_at(f"{gs_folder}/from/x")
    fs.rm(name)
    with pytest.raises(CopyRefusedError):
        copy(f"{gs_folder}/from", first, gs_folder)
    assert file_system_at(f"{gs_folder}/out/x")[0].cat_file(f"{gs_folder}/out/x") == b"theirs"


@pytest.mark.slow
def test_a_copy_is_known_again_when_the_answer_to_it_was_lost(gcs: LocalCloudStorage, gs_folder: str) -> None:
    put(f"{gs_folder}/from/x", b"text")
    file = listed(f"{gs_folder}/from")
    gcs.lost_answers = 1
    copy(f"{gs_folder}/from", file, gs_folder)
    assert gcs.lost_answers == 0
    assert listed(f"{gs_folder}/out").checksum == file.checksum


def test_lost_upload_is_store_error_and_not_missing_source(
    gcs: LocalCloudStorage, gs_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(f"{tmp_path}/from/x", b"text")
    answer = gcs.answer

    def answers(call: HttpRequest) -> Answer:
        return gcs.refusal("write", 404, "No such upload.") if "upload_id" in call.query else answer(call)

    monkeypatch.setattr(gcs, "answer", answers)
    with pytest.raises(StoreUnavailableError, match="parts/aside could not be written"):
        copy(f"{tmp_path}/from", listed(f"{tmp_path}/from"), gs_folder)


def test_multi_step_store_copy_is_awaited_until_complete(
    gcs: LocalCloudStorage, gs_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(f"{gs_folder}/from/x", b"0123456789")
    monkeypatch.setattr(gcs, "rewrite_bytes", 4)
    copy(f"{gs_folder}/from", listed(f"{gs_folder}/from"), gs_folder)
    assert gcs.requests["copy"] == 3
    assert listed(f"{gs_folder}/out").checksum == listed(f"{gs_folder}/from").checksum


def test_corrupted_bytes_in_target_store_are_detected(
    s3: LocalS3, s3_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(f"{tmp_path}/from/x", b"text")
    file = listed(f"{tmp_path}/from")
    bucket = s3_folder.removeprefix("s3://").partition("/")[0]

    class Lying(dict[str, S3Object]):
        """The objects of a bucket; each loses its last byte."""

        def __setitem__(self, key: str, found: S3Object) -> None:
            super().__setitem__(key, S3Object(found.data[:-1], found.written))

    s3.buckets[bucket] = Lying()
    with pytest.raises(DamagedCopyError, match=r"The copy of x was written with md5:.* and is md5:.* in its store"):
        copy(f"{tmp_path}/from", file, s3_folder)
    assert not s3.buckets[bucket]
