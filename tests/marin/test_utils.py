"""Marin's helpers of files, for those without a checkout: what they return, and what a file finds of them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import fsspec
import pytest

from tests.marin.checkouts import MAKE, made_name, put, refusal
from tradewind.marin import utils


@pytest.fixture(params=["local", "store"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a folder with files, of this machine or of a store."""
    if request.param == "local":
        for name in ("a/1.txt", "a/2.txt", "b/c/3.txt", "top.txt"):
            put(tmp_path / "in" / name, "text")
        return f"{tmp_path}/in"
    root = f"memory:///{tmp_path.name}/in"
    for name in ("a/1.txt", "a/2.txt", "b/c/3.txt", "top.txt"):
        with fsspec.open(f"{root}/{name}", "w") as file:
            file.write("text")
    return root


def test_files_are_found_measured_copied_and_removed(root: str, tmp_path: Path) -> None:
    assert utils.fsspec_exists(f"{root}/a/1.txt") and not utils.fsspec_exists(f"{root}/never")
    assert utils.fsspec_isdir(f"{root}/a") and not utils.fsspec_isdir(f"{root}/top.txt")
    assert utils.fsspec_glob(f"{root}/{{b/**,a}}/*.txt") == [f"{root}/{n}" for n in ("b/c/3.txt", "a/1.txt", "a/2.txt")]
    assert utils.fsspec_size(f"{root}/top.txt") == 4
    assert isinstance(utils.fsspec_mtime(f"{root}/top.txt"), datetime)
    assert sorted(utils.fsspec_get_curr_subdirectories(root)) == [f"{root}/a", f"{root}/b"]
    assert sorted(utils.fsspec_get_atomic_directories(root)) == [f"{root}/a", f"{root}/b/c"]
    assert utils.fsspec_get_atomic_directories(f"{root}/never") == []
    utils.fsspec_mkdirs(f"{root}/new")
    utils.fsspec_cp(str(put(tmp_path / "mine/one.txt", "one")), f"{root}/new/one.txt")
    utils.fsspec_cpdir(str(tmp_path / "mine"), f"{root}/copied")
    assert utils.fsspec_size(f"{root}/new/one.txt") == utils.fsspec_size(f"{root}/copied/one.txt") == 3
    assert utils.fsspec_rm(f"{root}/a") and not utils.fsspec_rm(f"{root}/a") and not utils.fsspec_isdir(f"{root}/a")


@pytest.mark.parametrize(
    ("given", "rebased"),
    [
        (("gs://b/in", "gs://b/in/x/1.jsonl.gz", "gs://b/out"), "gs://b/out/x/1.jsonl.gz"),
        (("/in/", "/in/x/1.jsonl.gz", "/out", ".md"), "/out/x/1.jsonl.md"),
        (("/in", "/in/x/1.jsonl.gz", "/out", ".md", ".jsonl.gz"), "/out/x/1.md"),
    ],
)
def test_path_is_rebased_to_another_folder(given: tuple[str, ...], rebased: str) -> None:
    assert utils.rebase_file_path(*given) == rebased


def test_path_without_the_extension_is_refused() -> None:
    with pytest.raises(ValueError, match="'/in/a.txt' has no .gz"):
        utils.rebase_file_path("/in", "/in/a.txt", "/out", ".md", ".gz")


def test_file_without_checkout_finds_the_helpers(tmp_path: Path) -> None:
    names = "from marin.utils import fsspec_exists, fsspec_glob, get_directory_friendly_name\n"
    assert made_name(tmp_path, f"{names}name = get_directory_friendly_name('a/b.c')\n") == "a--b-c"
    refusal(tmp_path, f"{names}name = 'a' if fsspec_exists('gs://b/a') else 'b'\n{MAKE}", ":3 ")
