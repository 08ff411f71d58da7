"""Listing, reading and removing files below a folder work the same on every store."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

import pytest
from fsspec.core import url_to_fs

from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.storage.backends import StoreRefusedError
from tradewind.storage.errors import StoreUnavailableError
from tradewind.storage.files import write_text
from tradewind.storage.trees import (
    StoredFile,
    list_files,
    read_files,
    reads_without_request,
    remove_files,
    stored_checksum,
)


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


def test_refused_listing_is_not_empty_and_not_retried(cloud: LocalCloudStorage) -> None:
    cloud.failures, cloud.failure_status = 1, 403
    with pytest.raises(StoreRefusedError, match="gs://bucket/x: the store refuses access"):
        list_files("gs://bucket/x")


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


def test_unreadable_folder_is_not_listed_as_empty(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreUnavailableError, match="loop: the store fails"):
        list_files(str(tmp_path / "loop"))
