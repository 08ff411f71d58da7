"""Choice of the files to tokenize, and the number of requests that it takes."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from tradewind.datasets.dataset import FilesSource
from tradewind.datasets.execution import list_source
from tradewind.datasets.token_inputs import InputFile, check_no_test_data, check_unchanged, input_files
from tradewind.datasets.token_rows import TokenizingError, rows_of
from tradewind.datasets.token_shards import shard_key
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.storage import file_system_at


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}\n")


def names(folder: Path, *paths: str) -> list[str]:
    found = input_files([str(folder / path) for path in paths], "train_paths")
    return [os.path.relpath(file.path, folder) for file in found]


def test_folder_input_expands_sorted_and_glob_expands_to_matches(tmp_path: Path) -> None:
    put(tmp_path, "b/z.jsonl", "b/a/y.parquet", "b/x.json.zstd", "a.jsonl.gz", "b/notes.md", "b/provenance.json")
    put(tmp_path, "b/stats.json", "b/.cache/w.jsonl", "b/.v.jsonl", "b/a/.x/u.jsonl")
    assert names(tmp_path, "b", "a.jsonl.gz") == ["b/a/y.parquet", "b/x.json.zstd", "b/z.jsonl", "a.jsonl.gz"]
    assert names(tmp_path, "b/*.js*", "[a]*") == ["b/x.json.zstd", "b/z.jsonl", "a.jsonl.gz"]
    assert names(tmp_path, "*/*/y*", "b/**/[a-z]*.jsonl") == ["b/a/y.parquet", "b/z.jsonl"]
    assert names(tmp_path, "b/.v.jsonl") == ["b/.v.jsonl"], "one that is named itself"
    found = list_source(FilesSource(f"{tmp_path}/**/*.jsonl"))
    assert [file.path for file in found] == [f"{tmp_path}/b/z.jsonl"], "those of a pipeline, too"
    assert names(tmp_path / "b/.cache", "*.jsonl", "../.v*") == ["w.jsonl", "../.v.jsonl"]


def test_existing_path_with_brackets_is_no_glob(tmp_path: Path, gcs: LocalCloudStorage, gs_folder: str) -> None:
    put(tmp_path, "run[1]/shard[0].jsonl", "run[1]/b.jsonl", "run1/shard0.jsonl", "what?/c.jsonl")
    assert names(tmp_path, "run[1]/shard[0].jsonl") == ["run[1]/shard[0].jsonl"]
    assert names(tmp_path, "run[1]/*.jsonl") == ["run[1]/b.jsonl", "run[1]/shard[0].jsonl"]
    assert names(tmp_path, "run[1]", "what?") == ["run[1]/b.jsonl", "run[1]/shard[0].jsonl", "what?/c.jsonl"]
    assert names(tmp_path, "run[0-9]/*.jsonl") == ["run1/shard0.jsonl"]
    fs, root = file_system_at(gs_folder)
    fs.pipe_file(f"{root}/run[1]/shard[0].jsonl", b"{}")
    for given in ("run[1]/shard[0].jsonl", "run[1]/*.jsonl", "run[1]"):
        assert [file.path for file in input_files([f"{gs_folder}/{given}"], "f")] == [
            f"{gs_folder}/run[1]/shard[0].jsonl"
        ]


@pytest.mark.parametrize("again", ["a/b.jsonl", "a/../a/b.jsonl", "a//b.jsonl", "./a/*", "link/b.jsonl", "link.jsonl"])
def test_file_listed_twice_refused(tmp_path: Path, again: str) -> None:
    put(tmp_path, "a/b.jsonl")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "a/b.jsonl")
    for given in (["a", again], [again, "a/b.jsonl"]):
        with pytest.raises(ValueError, match=r"train_paths: .*\.jsonl is listed twice"):
            input_files([f"{tmp_path}/{path}" for path in given], "train_paths")


def test_bucket_inputs_need_one_listing_not_a_request_per_file(gcs: LocalCloudStorage, gs_folder: str) -> None:
    fs, root = file_system_at(gs_folder)
    for number in range(20):
        fs.pipe_file(f"{root}/{number:02}.jsonl", b"{}")
    paths = [f"{gs_folder}/{number:02}.jsonl" for number in range(20)]
    found = []
    for given in ([gs_folder], paths):
        fs.invalidate_cache()
        gcs.requests.clear()
        found.append(input_files(given, "train_paths"))
        assert 0 < sum(gcs.requests.values()) <= 4
    assert found[0] == found[1] and [file.path for file in found[0]] == paths


def test_rewritten_file_has_another_shard_key(tmp_path: Path, gcs: LocalCloudStorage, gs_folder: str) -> None:
    for folder in (str(tmp_path), gs_folder):
        fs, root = file_system_at(folder)
        keys = set()
        for number in range(2):
            fs.pipe_file(f"{root}/a.jsonl", b"{%d}" % number)
            if folder == str(tmp_path):
                os.utime(tmp_path / "a.jsonl", (number, number))
            fs.invalidate_cache()
            keys.add(shard_key("recipe", input_files([folder], "train_paths")[0]))
        assert len(keys) == 2


def test_input_replaced_or_removed_during_read_is_refused(tmp_path: Path, gs_folder: str, s3_folder: str) -> None:
    for folder in (str(tmp_path), gs_folder, s3_folder):
        fs, root = file_system_at(folder)
        fs.pipe_file(f"{root}/a.jsonl", b"{}")
        [file] = input_files([folder], "train_paths")
        assert list(check_unchanged(file, "ab")) == ["a", "b"]
        for happens, content in ((fs.pipe_file, [b"{ }"]), (fs.rm_file, [])):
            read = check_unchanged(file, "ab")
            assert next(read) == "a"
            happens(f"{root}/a.jsonl", *content)
            with pytest.raises(TokenizingError, match="a.jsonl changed while it was tokenized"):
                list(read)


def test_malformed_row_is_reported_only_for_unchanged_input(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n[')
    [file] = input_files([str(path)], "train_paths")
    with pytest.raises(TokenizingError, match="a.jsonl line 2 is malformed"):
        list(check_unchanged(file, rows_of(str(path), "text")))
    for happens in (lambda: path.write_text("cut"), path.unlink):
        happens()
        with pytest.raises(TokenizingError, match="a.jsonl changed while it was tokenized"):
            list(check_unchanged(file, rows_of(str(path), "text")))


def test_shard_key_covers_recipe_and_file() -> None:
    file = InputFile("/a", 1, "x")
    others = [InputFile("/b", 1, "x"), InputFile("/a", 2, "x"), InputFile("/a", 1, "y")]
    assert len({shard_key("r", each) for each in (file, *others)} | {shard_key("s", file)}) == 5


TEST_DATA = ("a/test/b", "a_test_b", "gs://b/my-test.jsonl", "validation", "prevalidations")


@pytest.mark.parametrize("path", [*TEST_DATA, "latest/b", "testing/b", "test", "contest_a", "valid"])
def test_only_path_that_looks_like_test_data_refused(path: str) -> None:
    refused = pytest.raises(ValueError, match=r"looks like test data .*allow_test_in_train=True")
    with refused if path in TEST_DATA else nullcontext():
        check_no_test_data(["fine", path], is_allowed=False)


def test_pipe_as_input_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    for path in ("a.jsonl", "."):
        with pytest.raises(ValueError, match=r"a\.jsonl is no regular file|holds no file"):
            names(tmp_path, path)
