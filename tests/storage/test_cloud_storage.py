"""The local Cloud Storage server works with Google's client and gcsfs and enforces preconditions."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Callable
from typing import Any

import fsspec
import pytest

from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage


@pytest.fixture
def client(gcs: LocalCloudStorage) -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client

    return Client(project="some-project", credentials=AnonymousCredentials())


@pytest.fixture
def bucket(client: Any, gs_folder: str) -> Any:
    return client.bucket(gs_folder.split("/")[2])


def refused(request: Callable[[], object]) -> None:
    """Check that the server refuses the request because a precondition failed."""
    from google.api_core.exceptions import PreconditionFailed

    with pytest.raises(PreconditionFailed):
        request()


def test_bucket_has_the_location_of_its_creation(client: Any) -> None:
    client.create_bucket("made-in-europe", location="europe-west4")
    assert client.get_bucket("made-in-europe").location == "EUROPE-WEST4"
    assert not client.bucket("never-made").exists()


@pytest.mark.parametrize("size", [0, 10, 3 * 2**20])
@pytest.mark.parametrize("chunk", [None, 2**18])
def test_upload_is_read_back_whole(bucket: Any, size: int, chunk: int | None) -> None:
    data = os.urandom(size)
    blob = bucket.blob("näme with %2F+?#", chunk_size=chunk)
    blob.upload_from_string(data, content_type="application/x-own")
    found = bucket.get_blob(blob.name)
    assert (found.size, found.content_type, found.generation) == (size, "application/x-own", blob.generation)
    assert found.download_as_bytes(checksum="md5") == found.download_as_bytes(checksum="crc32c") == data
    assert found.download_as_bytes(start=2, end=5) == data[2:6] if size else True


def test_gcsfs_and_client_read_each_others_objects(bucket: Any, gs_folder: str) -> None:
    fs, big = fsspec.filesystem("gs"), os.urandom(3 * 2**20)
    bucket.blob("some/folder/x").upload_from_string("text")
    with fs.open(f"{gs_folder}/deep/big", "wb", block_size=2**20) as file:
        file.write(big)
    assert fs.cat(f"{gs_folder}/x") == b"text"
    assert bucket.blob("some/folder/deep/big").download_as_bytes() == big
    assert sorted(fs.ls(gs_folder)) == [f"{gs_folder[5:]}/deep", f"{gs_folder[5:]}/x"]
    fs.rm(gs_folder, recursive=True)
    assert list(bucket.list_blobs()) == []


def test_write_requires_named_generation(bucket: Any) -> None:
    blob = bucket.blob("x")
    refused(lambda: blob.upload_from_string("a", if_generation_match=7))
    refused(lambda: blob.upload_from_string("a", if_generation_not_match=0))
    blob.upload_from_string("a", if_generation_match=0)
    first = blob.generation
    refused(lambda: blob.upload_from_string("b", if_generation_match=0))
    refused(lambda: blob.upload_from_string("b", if_generation_not_match=first))
    blob.upload_from_string("b", if_generation_match=first)
    assert blob.generation > first
    refused(lambda: bucket.blob("x").upload_from_string("c", if_metageneration_match=2))
    assert bucket.blob("x").download_as_text() == "b"
    in_parts = bucket.blob("in parts", chunk_size=2**18)
    in_parts.upload_from_string(bytes(2**20), if_generation_match=0)
    refused(lambda: in_parts.upload_from_string(bytes(2**20), if_generation_match=0))


def test_read_delete_patch_and_copy_require_named_generation(bucket: Any) -> None:
    blob = bucket.blob("x")
    blob.upload_from_string("a")
    generation = blob.generation
    refused(lambda: blob.reload(if_generation_match=generation + 1))
    refused(lambda: bucket.blob("x").download_as_bytes(if_metageneration_match=2))
    blob.metadata = {"colour": "red"}
    blob.patch(if_metageneration_match=1)
    refused(lambda: blob.patch(if_metageneration_match=1))
    refused(lambda: bucket.copy_blob(blob, bucket, "y", if_source_generation_match=generation + 1))
    bucket.copy_blob(blob, bucket, "y", if_generation_match=0)
    refused(lambda: bucket.blob("y").rewrite(blob, if_generation_match=0))
    assert bucket.get_blob("y").metadata == {"colour": "red"}
    refused(lambda: bucket.blob("x").delete(if_generation_match=generation + 1))
    bucket.blob("x").delete(if_generation_match=generation)
    assert not bucket.blob("x").exists()


def test_listing_has_pages_prefixes_and_a_range(bucket: Any, client: Any, gcs: LocalCloudStorage) -> None:
    names = [f"l/{number // 5}/{number:02}" for number in range(25)] + ["l/5", "m"]
    for name in reversed(names):
        gcs.buckets.put(bucket.name, name, b"", {}, {})
    assert [blob.name for blob in client.list_blobs(bucket, prefix="l/", page_size=7)] == names[:-1]
    pages = client.list_blobs(bucket, prefix="l/", delimiter="/", page_size=2)
    assert [blob.name for blob in pages] == ["l/5"]
    assert pages.prefixes == {f"l/{number}/" for number in range(5)}
    assert gcs.requests["list"] == 4 + 3
    between = client.list_blobs(bucket, start_offset="l/4/22", end_offset="l/5")
    assert [blob.name for blob in between] == ["l/4/22", "l/4/23", "l/4/24"]


def test_end_of_upload_is_repeated_on_request(bucket: Any, gcs: LocalCloudStorage) -> None:
    begin = f"{gcs.url}/upload/storage/v1/b/{bucket.name}/o?uploadType=resumable&name=x"
    with urllib.request.urlopen(urllib.request.Request(begin, data=b"{}", method="POST")) as begun:
        url = begun.headers["Location"]
    request = urllib.request.Request(url, data=b"a", method="PUT", headers={"Content-Range": "bytes 0-0/1"})
    with urllib.request.urlopen(request) as first, urllib.request.urlopen(request) as second:
        assert first.read() == second.read()
    assert bucket.blob("x").download_as_text() == "a"
