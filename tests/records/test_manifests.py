"""A manifest lists the files of an output, so that checks find missing, changed and added files."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from fsspec.core import url_to_fs

from tradewind.records.lease import Lease, lease_path
from tradewind.records.manifests import (
    BadManifestError,
    Manifest,
    Problem,
    make_manifest,
    read_manifest,
    verify_output,
    write_manifest,
)
from tradewind.records.record import Status, write_status
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.storage.files import write_text
from tradewind.storage.trees import StoredFile


@pytest.fixture
def output(prefix: str) -> str:
    return f"{prefix}/out-abc123"


def put(folder: str, *paths: str, text: str = "text") -> None:
    for path in paths:
        write_text(f"{folder}/{path}", text)


def put_records(folder: str) -> None:
    write_status(folder, Status.RUNNING)
    write_text(lease_path(folder), Lease("me", 0.0).to_json())
    put(folder, ".executor_info", ".executor_status.lock.guard", ".attempts/1.json", ".attempts/1/driver.log")
    put(folder, f"..executor_status.{'0' * 31}a", f"..manifest.json.{'f' * 32}")


def md5(text: str) -> str:
    return f"md5:{hashlib.md5(text.encode()).hexdigest()}"


def paths_of(manifest: Manifest | None) -> list[str]:
    return [file.path for file in manifest.files] if manifest else []


def test_manifest_lists_output_files_with_sizes_and_checksums(output: str) -> None:
    put_records(output)
    put(output, "b/deep/x", ".artifact.json", "a", ".hidden/y", "b/.executor_notes")
    manifest = make_manifest(output, 3)
    assert manifest.attempt == 3
    assert paths_of(manifest) == [".artifact.json", ".hidden/y", "a", "b/.executor_notes", "b/deep/x"]
    assert {(file.size, file.checksum) for file in manifest.files} == {(4, md5("text"))}
    assert manifest.size == 20


def test_the_outputs_of_other_steps_below_are_not_part_of_it(output: str) -> None:
    put_records(output)
    put(output, "own", "with-status/x", "with-status/deep/x", "with-lease/x", "deep/with-info/x", "with-status-2/x")
    write_status(f"{output}/with-status", Status.SUCCESS)
    put(output, "with-lease/.executor_status.lock", "deep/with-info/.executor_info")
    assert paths_of(make_manifest(output, 1)) == ["own", "with-status-2/x"]


def test_each_attempt_has_its_manifest_as_written(output: str) -> None:
    assert read_manifest(output, 1) is None
    put(output, 'odd " name\n', "é", "a")
    first = make_manifest(output, 1)
    write_manifest(output, first)
    put(output, "b")
    second = make_manifest(output, 2)
    write_manifest(output, second)
    older = replace(second, attempt=3)
    write_text(f"{output}/.manifest.json", older.to_json())
    assert [read_manifest(output, number) for number in (1, 2, 3)] == [first, second, older]
    assert make_manifest(output, 2) == second  # no manifest lists its own file


def test_local_name_that_is_no_text_is_kept(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff", "wb"):
        pass
    manifest = make_manifest(str(tmp_path), 1)
    write_manifest(str(tmp_path), manifest)
    assert read_manifest(str(tmp_path), 1) == manifest
    assert verify_output(str(tmp_path), manifest, manifest.digest) == []


def test_manifest_text_has_line_per_file_covered_by_digest() -> None:
    manifest = Manifest(2, (StoredFile("a", 1, "md5:0"), StoredFile("b", 2)))
    lines = manifest.to_json().splitlines()
    assert lines == [
        '{"attempt": 2, "files": [',
        '{"path": "a", "size": 1, "checksum": "md5:0"},',
        '{"path": "b", "size": 2, "checksum": null}',
        "]}",
    ]
    assert manifest.digest == hashlib.sha256("\n".join(lines[1:-1]).encode()).hexdigest()
    assert json.loads(Manifest(1, ()).to_json()) == {"attempt": 1, "files": []}


def test_identical_files_give_same_digest_for_any_attempt(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), "memory://" + tmp_path.name
    put(one, "a", "b/c")
    put(two, "b/c", "a")
    put_records(two)
    assert make_manifest(one, 1).digest == make_manifest(two, 7).digest
    put(two, "a", text="TEXT")
    assert make_manifest(one, 1).digest != make_manifest(two, 1).digest


@pytest.mark.parametrize(
    ("files", "sentinel_file"),
    [
        ({"small": 1, "large": 9, ".larger": 99, ".cache/largest": 999, ".artifact.json": 50}, "large"),
        ({"b": 3, "a": 3, "c/d": 3}, "a"),
        ({"_SUCCESS": 0}, "_SUCCESS"),
        ({".artifact.json": 5, ".cache/x": 9}, ".artifact.json"),
        ({".cache/x": 9}, None),
        ({}, None),
    ],
)
def test_sentinel_is_largest_visible_file_or_result(files: dict[str, int], sentinel_file: str | None) -> None:
    assert Manifest(1, tuple(StoredFile(path, size) for path, size in files.items())).sentinel_file == sentinel_file


@pytest.mark.parametrize("text", ["", "half", '{"attempt": 1}', '{"attempt": 1, "files": [{"name": "x"}]}', "[]"])
def test_invalid_manifest_of_older_output_is_refused(tmp_path: Path, text: str) -> None:
    write_text(f"{tmp_path}/.manifest.json", text)
    with pytest.raises(BadManifestError, match=r"\.manifest\.json cannot be read, because"):
        read_manifest(str(tmp_path), 1)


def test_missing_changed_and_added_files_are_named(output: str) -> None:
    put(output, "gone", "grown", "changed", "same", "deep/same", ".artifact.json")
    manifest = make_manifest(output, 1)
    write_manifest(output, manifest)
    put_records(output)
    assert verify_output(output, manifest, manifest.digest) == []
    fs, name = url_to_fs(output)
    fs.rm_file(f"{name}/gone")
    put(output, "grown", text="longer text")
    put(output, "changed", text="TEXT")
    put(output, "b/new")
    assert verify_output(output, manifest) == [
        Problem("b/new", "not in the manifest"),
        Problem("changed", "checksum differs"),
        Problem("gone", "missing"),
        Problem("grown", "11 bytes instead of 4"),
    ]


def test_cloud_manifest_needs_no_reads_and_verifies_a_mirror(cloud: LocalCloudStorage, tmp_path: Path) -> None:
    output, mirror = "gs://bucket/unread-abc123", str(tmp_path)
    for folder in (output, mirror):
        put(folder, "a", "b/c")
    cloud.requests.clear()
    manifest = make_manifest(output, 1)
    assert verify_output(output, manifest, manifest.digest) == verify_output(mirror, manifest) == []
    assert cloud.requests == {"list": 2}
    put(mirror, "a", text="TEXT")
    assert verify_output(mirror, manifest) == [Problem("a", "checksum differs")]


def test_uncommitted_manifest_reported_as_problem(output: str) -> None:
    put(output, "a")
    committed = make_manifest(output, 1).digest
    put(output, "a", text="thawed and written later")
    later = make_manifest(output, 1)
    assert [str(problem) for problem in verify_output(output, later, committed)] == [
        "manifest.json: not the one that was committed"
    ]


def test_files_without_checksum_compared_by_size_only(tmp_path: Path) -> None:
    output = str(tmp_path)
    put(output, "composed", "in-parts")
    manifest = Manifest(1, (StoredFile("composed", 4, "crc32c:AAAAAA=="), StoredFile("in-parts", 4)))
    assert verify_output(output, manifest) == [
        Problem("composed", "cannot be compared: the manifest has its crc32c, and the store keeps none")
    ]
