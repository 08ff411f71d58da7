"""Roots: folders and buckets that may contain paths from outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tradewind.storage import OutsideRootsError, Roots, UnsupportedStoreError, UnusablePathError, resolve_location

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
    with pytest.raises(OutsideRootsError, match="A record: the path .* is below no allowed root .*allowed_roots"):
        ROOTS.check(path, "A record")


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


def test_without_roots_nothing_is_allowed() -> None:
    with pytest.raises(OutsideRootsError, match="there is none"):
        Roots().check("/data", "A record")


@pytest.mark.parametrize("root", ["relative", "", "http://h", "gs://", None, "file:x", "a::b"])
def test_root_must_be_an_absolute_path(root: object) -> None:
    with pytest.raises((UnusablePathError, UnsupportedStoreError), match="^allowed_roots: "):
        Roots.of([root], "allowed_roots")


def test_spellings_of_a_location_are_equal(tmp_path: Path) -> None:
    assert resolve_location("gcs://b/a//b/") == resolve_location("gs://b/a/b")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    assert resolve_location(f"{tmp_path}/link/x") == resolve_location(f"file://{tmp_path}/folder/x")
    assert resolve_location(f"{tmp_path}/link/x", follows_links=False).name == os.path.abspath(tmp_path / "link/x")
