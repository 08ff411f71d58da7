"""A new attempt starts without leftovers; records, other outputs and its checkpoints remain."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from tradewind.records.cleanup import UnsafeRemovalError, remove_leftovers
from tradewind.records.record import Status, write_status
from tradewind.storage.errors import LeaseLostError, StoreUnavailableError
from tradewind.storage.files import read_many, write_text
from tradewind.storage.trees import list_files


def removed(folder: str, keep: Sequence[str] = ()) -> list[str]:
    return remove_leftovers(folder, keep, check_lease=lambda: None)


@pytest.fixture
def output(prefix: str) -> str:
    write_status(f"{prefix}/out-abc123", Status.RUNNING)
    return f"{prefix}/out-abc123"


def put(folder: str, *paths: str, text: str = "text") -> None:
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(lambda path: write_text(f"{folder}/{path}", text), paths):
            pass


def left_at(folder: str) -> list[str]:
    return [file.path for file in list_files(folder)]


def test_only_files_of_earlier_attempts_are_removed(output: str) -> None:
    files = [".artifact.json", ".hidden/y", "[ab]", "a", "b/deep/x", "other-not/x"]
    records = [".attempts/1.json", ".attempts/1/driver.log", ".executor_info", ".executor_status", ".manifest.json"]
    half_written = f"..executor_status.lock.{'0' * 32}"
    of_other_steps = ["other/.executor_info", "other/deep/x", "other/x"]
    put(output, *files, *records, half_written, *of_other_steps)
    assert removed(output) == files
    assert left_at(output) == sorted([*records, half_written, *of_other_steps])
    assert removed(output) == []


CHECKPOINTS = {"checkpoints/step-1/w", "checkpoints/last"}
FILES = CHECKPOINTS | {"0.done", "shards/4.x", "shards/5.x", "w"}


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (["checkpoints/**"], CHECKPOINTS),
        (["checkpoints"], CHECKPOINTS),
        (["./checkpoints/"], CHECKPOINTS),
        (["checkpoints/*"], CHECKPOINTS),
        (["checkpoints/step-?"], {"checkpoints/step-1/w"}),
        (["**/w"], {"checkpoints/step-1/w", "w"}),
        (["*.done", "last"], {"0.done"}),
        (["shards/[0-4].x"], {"shards/4.x"}),
        (["**"], FILES),
        (["."], FILES),
        (["checkpoint"], set()),
    ],
)
def test_files_that_match_a_pattern_stay(output: str, keep: list[str], kept: set[str]) -> None:
    put(output, *FILES)
    assert removed(output, keep) == sorted(FILES - kept)
    assert {*left_at(output)} == kept | {".executor_status"}


@pytest.mark.parametrize("pattern", ["/checkpoints", "../other/**", "a/../../b", "check**", "a/**b"])
def test_invalid_pattern_refused_before_any_removal(output: str, pattern: str) -> None:
    put(output, "checkpoints/last")
    with pytest.raises(UnsafeRemovalError, match="pattern"):
        removed(output, ["kept", pattern])
    assert left_at(output) == [".executor_status", "checkpoints/last"]


@pytest.mark.parametrize("path", ["/", "file:///", "memory://", "memory:///", "//", "gs://bucket", "gs://bucket/"])
def test_the_root_of_a_store_is_refused(path: str) -> None:
    with pytest.raises(UnsafeRemovalError, match="root of a store"):
        removed(path)


def test_a_folder_without_a_record_is_refused(output: str) -> None:
    put(output, "data/precious")
    with pytest.raises(UnsafeRemovalError, match="holds no record of a step"):
        removed(f"{output}/data")
    assert left_at(f"{output}/data") == ["precious"]


def test_removal_refused_at_prefix_used_as_output(output: str) -> None:
    put(output, "experiments/table.json")
    assert removed(output) == ["experiments/table.json"], "such a folder alone is no prefix"
    put(output, "raw/precious", "experiments/nightly-0a1b2c.json")
    with pytest.raises(UnsafeRemovalError, match="is a prefix"):
        removed(output)
    assert "raw/precious" in left_at(output)


def test_empty_folders_removed_except_records_and_other_outputs(tmp_path: Path) -> None:
    write_status(str(tmp_path), Status.RUNNING)
    put(str(tmp_path), "a/b/c/x", "kept/x", "a/other/.executor_info")
    for folder in ("empty/deep", "a/other/empty", ".attempts/2"):
        os.makedirs(tmp_path / folder)
    assert removed(str(tmp_path), ["kept/**"]) == ["a/b/c/x"]
    folders = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_dir()}
    assert folders == {".attempts", ".attempts/2", "a", "a/other", "a/other/empty", "kept"}


def test_target_of_a_link_stays(tmp_path: Path) -> None:
    output, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    write_status(str(output), Status.RUNNING)
    put(str(elsewhere), "precious")
    (output / "folder").symlink_to(elsewhere)
    (output / "file").symlink_to(elsewhere / "precious")
    assert removed(str(output)) == ["file", "folder"]
    assert (elsewhere / "precious").read_text() == "text"
    assert left_at(str(output)) == [".executor_status"]


# ---- a lease that is lost during removal


MANY = [f"{number:03}" for number in range(150)]
"""More files than one batch removes."""


def lost_at(number: int, before: Callable[[int], None] = lambda number: None) -> Callable[[], None]:
    """Return a check of the lease that fails at this call; ``before`` gets the number of each call."""
    calls = count(1)

    def check_lease() -> None:
        before(call := next(calls))
        if call == number:
            raise LeaseLostError("another attempt is running")

    return check_lease


@pytest.mark.slow
@pytest.mark.parametrize("any_folder", ["local", "gs"], indirect=True)
@pytest.mark.parametrize(("lost_check", "left"), [(1, 150), (2, 50)])
def test_lost_lease_ends_removal_before_next_batch(any_folder: str, lost_check: int, left: int) -> None:
    write_status(any_folder, Status.RUNNING)
    put(any_folder, *MANY)
    with pytest.raises(LeaseLostError):
        remove_leftovers(any_folder, (), lost_at(lost_check))
    assert len(left_at(any_folder)) == left + len([".executor_status"])


def test_lost_lease_keeps_empty_folders(tmp_path: Path) -> None:
    """The next attempt may have created the folder and not written into it yet."""
    output = str(tmp_path / "out")
    write_status(output, Status.RUNNING)
    put(output, "part/model")
    with pytest.raises(LeaseLostError):
        remove_leftovers(output, (), lost_at(2))
    assert left_at(output) == [".executor_status"] and Path(output, "part").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("any_folder", ["local", "gs", "s3"], indirect=True)
def test_files_of_next_attempt_survive_removal_by_frozen_one(any_folder: str) -> None:
    write_status(any_folder, Status.RUNNING)
    put(any_folder, *MANY)

    def commit_next(check: int) -> None:
        if check == 2:  # the process freezes after its read of the lease, and the next attempt commits meanwhile
            put(any_folder, *MANY, text="of the next attempt")

    with pytest.raises(LeaseLostError):
        remove_leftovers(any_folder, (), lost_at(3, commit_next))
    texts = read_many([f"{any_folder}/{name}" for name in MANY])
    assert [*texts.values()] == ["of the next attempt"] * len(MANY)


def test_s3_equal_file_of_next_attempt_removed_as_old(s3_folder: str) -> None:
    write_status(s3_folder, Status.RUNNING)
    put(s3_folder, "a")
    remove_leftovers(s3_folder, (), lambda: put(s3_folder, "a"))
    assert left_at(s3_folder) == [".executor_status"], "as the docs say; a full check finds it"


def test_removal_refused_while_files_keep_appearing(output: str) -> None:
    put(output, "0")
    names = count(1)
    with pytest.raises(StoreUnavailableError, match="cannot be removed, or come back, such as 2"):
        remove_leftovers(output, (), lambda: put(output, str(next(names))))
