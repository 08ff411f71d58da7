"""Path checks: accepted paths, roots that may contain paths from outside, and no other code that opens a store."""

from __future__ import annotations

import ast
import os
import re
from functools import partial
from pathlib import Path

import pytest

import tradewind
from tradewind.storage import (
    Location,
    OutsideRootsError,
    Roots,
    UnsupportedStoreError,
    UnusablePathError,
    file_system_at,
    open_file,
    resolve_location,
)
from tradewind.storage.files import existing_many, read_many, read_text, write_text
from tradewind.storage.swap import read_stored
from tradewind.storage.trees import list_files

PACKAGE = Path(tradewind.__file__).parent


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/data/out", Location("file", "", "/data/out")),
        ("out/relative", Location("file", "", "out/relative")),
        ("~/out", Location("file", "", "~/out")),
        ("file:///data/out", Location("file", "", "/data/out")),
        ("local:///data/out", Location("file", "", "/data/out")),
        ("gs://bucket", Location("gs", "bucket", "")),
        ("gcs://bucket/a/b", Location("gs", "bucket", "a/b")),
        ("s3a://bucket/a=1/b@2", Location("s3", "bucket", "a=1/b@2")),
        ("memory://a/b", Location("memory", "", "a/b")),
        ("/data/a:b", Location("file", "", "/data/a:b")),
    ],
)
def test_path_is_parsed(path: str, location: Location) -> None:
    assert Location.of(path) == location


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "is empty"),
        (None, "text, not NoneType"),
        (Path("/data"), "text, not "),
        ("reference://::http://127.0.0.1/x", "chain"),
        ("simplecache::gs://bucket/x", "chain"),
        ("gs://bucket/a::b", "chain"),
        ("/data/a::zip://b", "chain"),
        ("data:text/plain,hello", "holds data itself"),
        ("gs://bucket/\0", "NUL"),
        ("/data/\udc80", "half of a character"),
        ("gs://", "names no bucket"),
        ("s3:///key", "names no bucket"),
        ("gs://me:hunter2@bucket/x", "a user's name or a password"),
        ("/" + "x" * 256, "256 bytes"),
        ("gs://bucket/" + "x" * 1025, "1,025 bytes"),
        ("/" + "ab/" * 2000, "6,001 bytes"),
    ],
)
def test_invalid_path_is_refused_with_reason(path: str, why: str) -> None:
    with pytest.raises(UnusablePathError, match=re.escape(why)) as refused:
        Location.of(path)
    assert "hunter2" not in str(refused.value) and len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "path",
    [
        "http://h/x", "https://h/x", "ftp://h/x", "ssh://h/x", "github://a:b@c/x", "zip://x", "reference://x",
        "dir://x", "GS://bucket/x", "://x", "hdfs://h/x", "abfs://c/x", "jlab://h/x",
    ],
)  # fmt: skip
def test_other_stores_are_refused_without_their_password(path: str) -> None:
    with pytest.raises(UnsupportedStoreError, match="a step could run twice"):
        Location.of(path)
    with pytest.raises(UnsupportedStoreError) as refused:
        Location.of("https://me:hunter2@host/x?sig=hunter2")
    assert "hunter2" not in str(refused.value) and "https://***@host/x?***" in str(refused.value)


def test_refused_path_is_opened_by_no_function(tmp_path: Path) -> None:
    template = tmp_path / "refs.json"
    template.write_text('{"version": 1, "refs": {"x": "{{ 1/0 }}"}}')
    for path in (f"reference://::{template}", f"zip://x::{template}", f"http://127.0.0.1:9/{template.name}"):
        calls = [partial(call, path) for call in (read_text, read_stored, list_files, file_system_at, open_file)]
        calls += [partial(call, [path]) for call in (read_many, existing_many)]
        for call in (*calls, partial(write_text, path, "x")):
            with pytest.raises((UnusablePathError, UnsupportedStoreError)):
                call()


_OPENERS = {"url_to_fs", "get_fs_token_paths", "open_files", "open_local", "get_mapper", "from_url"}


@pytest.mark.slow
def test_one_module_opens_file_systems() -> None:
    """``fsspec.filesystem`` takes a protocol instead of a path, but would also bypass the path check."""
    for file in PACKAGE.rglob("*.py"):
        if file == PACKAGE / "storage/filesystems.py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            names = {node.attr} if isinstance(node, ast.Attribute) else set()
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fsspec"):
                names = {alias.name for alias in node.names}
            assert not names & _OPENERS, f"{file.relative_to(PACKAGE)} uses {names & _OPENERS}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fsspec":
                assert node.attr not in ("open", "filesystem", "core"), f"{file.relative_to(PACKAGE)}: {node.attr}"


# ---- roots


ROOTS = Roots.of(["gs://bucket/pipelines/", "s3://ours", "memory://top", "/data/store"])


@pytest.mark.parametrize(
    "path",
    [
        "gs://bucket/pipelines", "gs://bucket/pipelines/", "gcs://bucket/pipelines/train-abc123",
        "gs://bucket//pipelines/x", "s3a://ours", "s3://ours/a=1/b@2", "memory://top/a", "memory:///top/a/../b",
        "/data/store/x", "file:///data/store/x", "/data/./store//x", "/data/other/../store/x",
    ],
)  # fmt: skip
def test_path_below_root_is_allowed(path: str) -> None:
    assert ROOTS.allow(path)
    ROOTS.check(path, "A record")


@pytest.mark.parametrize(
    "path",
    [
        "gs://bucket", "gs://bucket/", "gs://bucket/pipelines-2", "gs://bucket/pipeline", "gs://pipelines/bucket",
        "gs://bucket2/pipelines", "s3://bucket/pipelines", "s3://ours2/x", "memory://toppled/a",
        "memory://top/../other", "memory://", "/data", "/", "/data/store2", "/data/store/../secret", "data/store/x",
        "~/store", "/DATA/store",
    ],
)  # fmt: skip
def test_path_outside_roots_is_refused_with_its_source(path: str) -> None:
    assert not ROOTS.allow(path)
    for roots, found in ((ROOTS, ".*allowed_roots"), (Roots(), ".*there is none")):
        with pytest.raises(OutsideRootsError, match=f"A record: the path .* is below no allowed root {found}"):
            roots.check(path, "A record")


@pytest.mark.parametrize("path", ["http://h/x", "reference://::x", None, 3, "", "gs://", "gs://bucket/pipelines/../x"])
def test_invalid_path_is_below_no_root(path: object) -> None:
    assert not ROOTS.allow(path)
    with pytest.raises((UnusablePathError, UnsupportedStoreError)):
        ROOTS.check(path, "A record")


def test_links_are_resolved_before_the_check(tmp_path: Path) -> None:
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    store.mkdir()
    (store / "out").symlink_to(elsewhere)
    (store / "within").symlink_to("in")
    (store / "loop").symlink_to("loop")
    roots = Roots.of([str(store)])
    assert not roots.allow(f"{store}/out") and not roots.allow(f"{store}/out/deep/not-there-yet")
    assert not roots.allow(f"{store}/out/../secret")
    assert roots.allow(f"{store}/within/x") and roots.allow(f"{store}/loop")
    assert Roots.of([f"{store}/out"]).allow(str(elsewhere / "deep"))


@pytest.mark.parametrize("root", ["relative", "", "http://h", "gs://", None, "file:x", "a::b"])
def test_root_must_be_an_absolute_path(root: object) -> None:
    with pytest.raises((UnusablePathError, UnsupportedStoreError), match="^allowed_roots: "):
        Roots.of([root], "allowed_roots")


def test_spellings_of_a_location_are_equal(tmp_path: Path) -> None:
    assert resolve_location("gcs://b/a//b/") == resolve_location("gs://b/a/b")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    assert resolve_location(f"{tmp_path}/link/x") == resolve_location(f"file://{tmp_path}/folder/x")
    assert resolve_location(f"{tmp_path}/link/x", follows_links=False).name == os.path.abspath(tmp_path / "link/x")
