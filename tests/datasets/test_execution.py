"""A pipeline that is lost at any point goes on where it was: no whole shard is made twice, the bytes are the same."""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tradewind.datasets import (
    Backend,
    Dataset,
    PipelineError,
    create_backend,
    load_jsonl,
    run_over_files,
    set_flow_backend,
)
from tradewind.datasets.execution import MAX_ERRORS, SCRATCH_FOLDER, Results
from tradewind.datasets.per_file import FilesReport
from tradewind.datasets.pipeline_step import DatasetStepConfig, run_dataset_step
from tradewind.datasets.rows import Rows
from tradewind.datasets.stored_progress import read_progress
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest

SHARDS = 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for shard in range(SHARDS):
        rows = [json.dumps({"id": f"{shard}-{row}", "word": f"w{row % 7}"}) for row in range(20)]
        (tmp_path / "in" / f"{shard}.jsonl").write_text("\n".join(rows) + "\n")
    return tmp_path


class Lost(BaseException):
    """The driver dies: nothing catches it."""


class Calls:
    """Notes which files were read; loses the driver at the one that the file ``fatal`` names."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        name = row["id"].split("-")[0]
        if (fatal := self.log.with_name("fatal")).exists() and fatal.read_text() == name:
            raise Lost
        if row["id"].endswith("-0"):
            with self.log.open("a") as log:
                log.write(f"{name}\n")
        return row

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.log.read_text().split())


def counted(word: str, rows: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return {"word": word, "ids": sorted(row["id"] for row in rows)}


def pipeline(folder: Path, calls: Calls) -> Dataset[str]:
    rows = Dataset.from_files(f"{folder}/in/*.jsonl").load_jsonl().map(calls)
    grouped = rows.group_by(lambda row: row["word"], reducer=counted, num_output_shards=3)
    return grouped.write_jsonl(f"{folder}/out/{{shard}}-of-{{total}}.jsonl.gz")


def backend(folder: Path, **options: Any) -> Backend:
    return create_backend("sync", scratch=f"{folder}/scratch", **options)


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "out").iterdir()}


@pytest.fixture
def undisturbed(folder: Path) -> dict[str, bytes]:
    create_backend("threadpool").execute(pipeline(folder, Calls(folder / "first")))
    made = outputs(folder)
    shutil.rmtree(folder / "out")
    return made


@pytest.mark.parametrize("fatal", ["0", "3", "5"])
def test_lost_driver_goes_on_with_missing_shards(folder: Path, undisturbed: dict[str, bytes], fatal: str) -> None:
    (folder / "fatal").write_text(fatal)
    with pytest.raises(Lost):
        backend(folder).execute(pipeline(folder, Calls(folder / "calls")))
    (folder / "fatal").unlink()
    results = backend(folder).execute(pipeline(folder, Calls(folder / "calls")))
    assert outputs(folder) == undisturbed
    assert len(results) == 3
    assert Calls(folder / "calls").counts == Counter(map(str, range(SHARDS)))


def test_full_disk_costs_only_the_shards_that_it_stops(folder: Path) -> None:
    def long(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "text": random.Random(row["id"]).randbytes(200_000 if row["id"][0] == "2" else 10).hex()}

    def written(to: Path) -> Dataset[str]:
        return Dataset.from_files(f"{folder}/in/*.jsonl").load_jsonl().map(long).write_jsonl(f"{to}/{{shard}}.jsonl.gz")

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))  # as far as the disk goes
    try:
        with pytest.raises(PipelineError, match="1 of 6 shards failed:\n  shard 2: OSError: .*File too large"):
            backend(folder).execute(written(folder / "out"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    kept = {path.name: path.stat().st_mtime_ns for path in (folder / "out").iterdir()}
    assert sorted(kept) == [f"{shard}.jsonl.gz" for shard in (0, 1, 3, 4, 5)]
    backend(folder).execute(written(folder / "out"))
    assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in (folder / "out").iterdir()}.items()
    made = outputs(folder)
    create_backend("sync").execute(written(folder / "other"))
    assert made == {path.name: path.read_bytes() for path in (folder / "other").iterdir()}


def test_busy_store_that_loses_answers_changes_nothing(
    folder: Path, undisturbed: dict[str, bytes], gs_folder: str, gcs: LocalCloudStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, count = gcs.answer, itertools.count(1)

    def disturbed(call: HttpRequest) -> Answer:
        at = next(count)
        gcs.lost_answers = int(at % 40 == 25)
        return gcs.refusal("busy", 503, "try again") if at % 40 == 10 else answer(call)

    monkeypatch.setattr(gcs, "answer", disturbed)
    rows = Dataset.from_files(f"{folder}/in/*.jsonl").load_jsonl()
    grouped = rows.group_by(lambda row: row["word"], reducer=counted, num_output_shards=3)
    data = grouped.write_jsonl(f"{gs_folder}/{{shard}}-of-{{total}}.jsonl.gz")
    paths = create_backend("sync", scratch=f"{gs_folder}/scratch").execute(data)
    assert gcs.requests["busy"] >= 3
    assert {path.rpartition("/")[2]: fsspec.filesystem("gs").cat_file(path) for path in paths} == undisturbed


def test_finished_pipeline_reads_and_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backend(folder).execute(pipeline(folder, Calls(folder / "calls")))
    states = {path: path.stat().st_mtime_ns for path in (folder / "out").iterdir()}
    assert len(backend(folder).execute(pipeline(folder, Calls(folder / "calls")))) == 3
    assert {path: path.stat().st_mtime_ns for path in (folder / "out").iterdir()} == states
    assert Calls(folder / "calls").counts == Counter(map(str, range(SHARDS)))
    assert "Nothing to do: all 3 shards were there already." in capsys.readouterr().out


@pytest.mark.parametrize("harm", ["gone", "cut", "replaced"])
def test_harmed_output_is_made_again(folder: Path, undisturbed: dict[str, bytes], harm: str) -> None:
    backend(folder).execute(pipeline(folder, Calls(folder / "calls")))
    victim = folder / "out" / "1-of-3.jsonl.gz"
    content = victim.read_bytes()
    victim.unlink()
    if harm != "gone":
        victim.write_bytes(content[:-1] if harm == "cut" else content[:-1] + b"x")
    backend(folder).execute(pipeline(folder, Calls(folder / "calls")))
    assert outputs(folder) == undisturbed


@pytest.mark.parametrize("harm", ["cut", "gone", "flipped"])
def test_damaged_shuffle_is_made_again(folder: Path, undisturbed: dict[str, bytes], harm: str) -> None:
    """The driver is lost between the stages, and a file of the shuffle is damaged then."""

    def lose(word: str, rows: Iterator[dict[str, Any]]) -> dict[str, Any]:
        if not (folder / "lost").exists():
            raise Lost
        return counted(word, rows)

    rows = Dataset.from_files(f"{folder}/in/*.jsonl").load_jsonl().map(Calls(folder / "calls"))
    grouped = rows.group_by(lambda row: row["word"], reducer=lose, num_output_shards=3)
    dataset = grouped.write_jsonl(f"{folder}/out/{{shard}}-of-{{total}}.jsonl.gz")
    with pytest.raises(Lost):
        backend(folder).execute(dataset)
    (folder / "lost").touch()
    victim = sorted((folder / "scratch").glob("00-*/000002-*.rows"))[0]
    state, content = victim.stat(), bytearray(victim.read_bytes())
    victim.unlink()
    if harm != "gone":
        content[len(content) // 4] ^= 1
        victim.write_bytes(content if harm == "flipped" else content[:-1])
        os.utime(victim, ns=(state.st_atime_ns, state.st_mtime_ns))
    backend(folder).execute(dataset)
    assert outputs(folder) == undisturbed
    assert Calls(folder / "calls").counts == Counter(map(str, range(SHARDS))) + Counter("2")


def test_changed_code_and_input_are_processed_again(folder: Path) -> None:
    def run(least: int) -> list[Any]:
        rows = Dataset.from_files(f"{folder}/in/*.jsonl").load_jsonl()
        kept = rows.filter(lambda row: int(row["word"][1:]) >= least)
        return list(backend(folder).execute(kept.write_jsonl(f"{folder}/out/{{shard}}.jsonl")))

    def lines() -> int:
        return sum(content.count(b"\n") for content in outputs(folder).values())

    run(0)
    assert lines() == SHARDS * 20
    run(6)
    assert lines() == SHARDS * 2
    with (folder / "in" / "3.jsonl").open("a") as file:
        file.write('{"id": "3-99", "word": "w6"}\n')
    run(6)
    assert lines() == SHARDS * 2 + 1


def test_existing_files_are_skipped_without_their_inputs(folder: Path) -> None:
    def run() -> None:
        rows = Dataset.from_files(f"{folder}/in/*.jsonl").load_jsonl().map(Calls(folder / "calls"))
        create_backend("sync").execute(rows.reshard(2).write_jsonl(f"{folder}/out/{{shard}}.jsonl", skip_existing=True))

    run()
    run()
    assert Calls(folder / "calls").counts == Counter(map(str, range(SHARDS)))


def test_second_driver_takes_manifest_of_first(folder: Path, undisturbed: dict[str, bytes]) -> None:
    """A second driver runs as a whole while the first is in its last shard."""
    other: list[Any] = []

    def race(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == "5-19" and not other:
            other.append(None)
            other.extend(backend(folder).execute(dataset))
        return row

    rows = Dataset.from_files(f"{folder}/in/*.jsonl").load_jsonl().map(race)
    grouped = rows.group_by(lambda row: row["word"], reducer=counted, num_output_shards=3)
    dataset = grouped.write_jsonl(f"{folder}/out/{{shard}}-of-{{total}}.jsonl.gz")
    assert list(backend(folder).execute(dataset)) == other[1:]
    assert outputs(folder) == undisturbed


def test_poison_row_is_told_after_all_other_shards(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def poisoned(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == "1-13":
            raise RuntimeError("bad row")
        return row

    rows = Dataset.from_files(f"{folder}/in/*.jsonl").load_jsonl().map(poisoned)
    dataset = rows.write_jsonl(f"{folder}/out/{{shard}}.jsonl")
    with pytest.raises(PipelineError, match="1 of 6 shards failed") as told:
        backend(folder).execute(dataset)
    for part in ("RuntimeError: bad row", "in/1.jsonl row 14", "'1-13'", "test_execution.py:", "in poisoned"):
        assert part in str(told.value)
    assert len(outputs(folder)) == SHARDS - 1
    assert capsys.readouterr().out.count("It is processed again.") == MAX_ERRORS - 1
    progress = json.loads((folder / "scratch" / "progress.json").read_text())
    assert (progress["stages"][0]["done"], progress["stages"][0]["failed"]) == (SHARDS - 1, 1)
    assert "bad row" in progress["problem"]
    (folder / "scratch").rename(folder / SCRATCH_FOLDER)
    stored = read_progress(str(folder))
    assert stored is not None and stored.problem is not None and not stored.rejected
    [poison] = stored.stages[0].failures
    assert (poison.shard, poison.message) == (1, "RuntimeError: bad row")
    assert "in/1.jsonl row 14" in poison.place and "'1-13'" in poison.row and "in poisoned" in poison.frame
    (folder / SCRATCH_FOLDER).rename(folder / "scratch")

    results = backend(folder, on_error="quarantine").execute(dataset)
    assert (len(results), results.rejected) == (SHARDS, 1)
    (folder / "scratch").rename(folder / SCRATCH_FOLDER)
    stored = read_progress(str(folder))
    assert stored is not None and stored.problem is None and stored.stages[0].done == SHARDS
    assert [(each.stage, each.shard, each.rejected) for each in stored.rejected] == [(1, 1, 1)]
    assert "bad row" in stored.rejected[0].rejection
    (file,) = (folder / "out" / ".quarantine").iterdir()
    kept = json.loads(file.read_text())
    assert kept["row"]["id"] == "1-13"


def test_malformed_line_is_tried_once_after_which_others_finish(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / "in" / "1.jsonl").open("a") as file:
        file.write("broken\n")
    with pytest.raises(PipelineError, match="1.jsonl line 21 is malformed"):
        backend(folder).execute(pipeline(folder, Calls(folder / "calls")))
    assert "It is processed again." not in capsys.readouterr().out
    assert Calls(folder / "calls").counts == Counter(map(str, range(SHARDS)))


def test_permanent_error_ends_pipeline_at_once(folder: Path) -> None:
    calls = Calls(folder / "calls")

    def broken(row: dict[str, Any]) -> Any:
        calls(row)
        return undefined_name  # type: ignore[name-defined]  # noqa: F821

    dataset = Dataset.from_files(f"{folder}/in/*.jsonl").load_jsonl().map(broken)
    with pytest.raises(PipelineError, match="NameError: name 'undefined_name' is not defined"):
        backend(folder, max_parallelism=1).execute(dataset)
    assert calls.counts == Counter("0")


def test_dry_run_shows_stages_and_processes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert backend(folder, dry_run=True).execute(pipeline(folder, Calls(folder / "calls"))) == []
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("Stage 1: 6 shards, ") and out[0].endswith("load_jsonl → map → shuffle into 3 shards")
    assert out[1] == "Stage 2: 3 shards: group_by → write_jsonl"
    assert not (folder / "calls").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"backend_type": "dask"}, "backend 'dask': there are ray, threadpool, sync"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"max_parallelism": 0}, "max_parallelism=0"),
        ({"memory": "1MB"}, "needs at least 64 MiB"),
        ({"memory": "lots"}, "memory is 'lots'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        create_backend(**{"backend_type": "sync", **options})


def test_rows_keep_their_place_for_messages() -> None:
    rows = Rows()
    assert rows.place == ""
    rows.path, rows.number = "a.jsonl", 1234
    assert rows.place == "a.jsonl row 1,234"


def test_function_runs_once_per_file_without_sentinel(folder: Path) -> None:
    def upper(path: str, output: str) -> None:
        if path.endswith("4.jsonl"):
            raise ValueError("not this one")
        Path(output).write_text(Path(path).read_text().upper())

    def run() -> FilesReport:
        return run_over_files(upper, f"{folder}/in/*.jsonl", f"{folder}/upper")

    (folder / "upper").mkdir()
    first = run()
    assert str(first) == f"6 files: 5 made, 0 there already, 1 failed\n  {folder}/in/4.jsonl: ValueError: not this one"
    assert sorted(os.listdir(folder / "upper"))[:2] == ["0.jsonl", "0.jsonl.COMPLETE"]
    second = run()
    assert (second.made, sorted(second.existing), second.failed) == ([], sorted(first.made), first.failed)
    with pytest.raises(PipelineError, match="have one output"):
        run_over_files(upper, f"{folder}/in/*.jsonl", lambda path: "same")


def test_loaders_of_zephyr_are_functions_and_methods(folder: Path) -> None:
    files = Dataset.from_files(f"{folder}/in/{{0,1}}.jsonl")
    rows = list(load_jsonl(f"{folder}/in/0.jsonl")) + list(load_jsonl(f"{folder}/in/1.jsonl"))
    assert list(create_backend("sync").execute(files.flat_map(load_jsonl))) == rows
    assert files.flat_map(load_jsonl) == files.load_jsonl()
    assert Dataset.from_files(f"{folder}/in", "{0,1}.jsonl") == files, "the older form"


@pytest.mark.parametrize(
    ("dataset", "problem"),
    [
        (Dataset.from_files("a/{0..2000}.jsonl"), "its braces make more than 1,000 globs"),
        (Dataset.from_files("nowhere/*.jsonl"), "No file matches nowhere/.*empty_glob_ok=True"),
    ],
)
def test_source_without_usable_files_is_refused(dataset: Dataset[Any], problem: str) -> None:
    with pytest.raises((PipelineError, FileNotFoundError), match=problem):
        create_backend("sync").execute(dataset)


def test_numbers_of_any_size_can_be_items() -> None:
    assert len(create_backend("sync").execute(Dataset.from_list([10**5000]).map(lambda number: number % 7))) == 1


def test_small_files_are_joined_into_one_shard(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "in" / "2.jsonl").write_text('{"id": "2-0"}\n' * 1_000)
    small = sum((folder / "in" / f"{shard}.jsonl").stat().st_size for shard in (0, 1))
    source = Dataset.from_files(f"{folder}/in/*.jsonl", approx_shard_bytes=small + 10)
    dataset = source.load_jsonl(include_file_paths=True).write_jsonl(f"{folder}/out/{{shard}}.jsonl")
    paths = backend(folder).execute(dataset)
    read = [[json.loads(line)["file_path"][-7:] for line in Path(path).read_text().splitlines()] for path in paths]
    assert [list(dict.fromkeys(rows)) for rows in read] == [
        ["0.jsonl", "1.jsonl"],
        ["2.jsonl"],
        ["3.jsonl", "4.jsonl"],
        ["5.jsonl"],
    ]
    with (folder / "in" / "4.jsonl").open("a") as file:
        file.write("broken")
    with pytest.raises(PipelineError, match="shard 2: .*/in/4.jsonl line 21 is malformed"):
        backend(folder).execute(dataset)
    assert "Stage 1: 4 shards, " in capsys.readouterr().out


@pytest.mark.parametrize("skip_existing", [False, True], ids=["records", "files"])
def test_finished_rerun_costs_no_request_per_shard(gs_folder: str, gcs: LocalCloudStorage, skip_existing: bool) -> None:
    """A thousand files are one page of a listing, so ten thousand cost some 40 requests."""
    numbers = Dataset.from_list(range(60)).map(lambda number: {"number": number})
    dataset = numbers.write_jsonl(f"{gs_folder}/out/{{shard}}.jsonl", skip_existing=skip_existing)
    for scratch in ("first", "second" if skip_existing else "first"):
        gcs.requests.clear()
        assert len(create_backend("threadpool", scratch=f"{gs_folder}/{scratch}").execute(dataset)) == 60
    assert gcs.requests.total() < 20, gcs.requests


STOP = {"w0"}
"""Changed by a test, as a user edits a file."""


def is_kept(row: dict[str, Any]) -> bool:
    return any(row["word"] == word for word in STOP) is False


def run_kept(folder: Path, **options: Any) -> Results:
    rows = Dataset.from_files(f"{folder}/in/*.jsonl").load_jsonl().filter(is_kept)
    return backend(folder, **options).execute(rows.reshard(2).write_jsonl(f"{folder}/out/{{shard}}.jsonl"))


def lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (folder / "out").glob("*.jsonl"))


def test_changed_data_of_a_module_is_processed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_kept(folder)
    before = lines(folder)
    monkeypatch.setitem(globals(), "STOP", {"w0", "w1"})
    run_kept(folder)
    assert lines(folder) == before - SHARDS * 3


def test_raise_after_skip_reads_all_shards_again(folder: Path) -> None:
    with (folder / "in" / "2.jsonl").open("a") as file:
        file.write("broken\n")
    assert run_kept(folder, on_error="skip").rejected == 1
    assert run_kept(folder, on_error="quarantine").rejected == 1
    assert len(list((folder / "out" / ".quarantine").iterdir())) == 1
    with pytest.raises(PipelineError, match="line 21 is malformed"):
        run_kept(folder)


def test_middle_output_that_is_gone_is_made_again(folder: Path) -> None:
    rows = Dataset.from_files(f"{folder}/in/*.jsonl").load_jsonl()
    dataset = rows.write_jsonl(f"{folder}/mid/{{shard}}.jsonl").map(os.path.basename).reshard(1)
    names = list(backend(folder).execute(dataset))
    (folder / "mid" / "3.jsonl").unlink()
    assert list(backend(folder).execute(dataset)) == names
    assert (folder / "mid" / "3.jsonl").exists()


@pytest.mark.parametrize("pattern", ["{folder}/in/{{shard}}.jsonl", "in/{{shard}}.jsonl", "./in/../in/{{shard}}.jsonl"])
def test_output_over_its_input_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    monkeypatch.chdir(folder)
    rows = Dataset.from_files("in/*.jsonl").load_jsonl()
    with pytest.raises(PipelineError, match="is read and written: write to another folder"):
        backend(folder).execute(rows.write_jsonl(pattern.format(folder=folder)))


def test_changed_file_of_a_list_is_processed_again(folder: Path) -> None:
    dataset = Dataset.from_list([f"{folder}/in/0.jsonl"]).load_jsonl().count()
    assert list(backend(folder).execute(dataset)) == [20]
    (folder / "in" / "0.jsonl").write_text("{}\n")
    assert list(backend(folder).execute(dataset)) == [1]


def test_input_that_changes_while_it_is_read_is_refused(folder: Path) -> None:
    def grow(row: dict[str, Any]) -> dict[str, Any]:
        with (folder / "in" / "0.jsonl").open("a") as file:
            file.write(" \n")
        return row

    rows = Dataset.from_files(f"{folder}/in/0.jsonl").load_jsonl().map(grow)
    with pytest.raises(PipelineError, match="0.jsonl changed while the pipeline ran"):
        create_backend("sync").execute(rows)


def test_line_of_a_file_that_is_being_written_is_told_as_that(folder: Path) -> None:
    with (folder / "in" / "0.jsonl").open("a") as file:
        file.write('{"id": "0-20", ')

    def finish(row: dict[str, Any]) -> dict[str, Any]:
        with (folder / "in" / "0.jsonl").open("a") as file:
            file.write('"word": "w0"}\n')
        return row

    rows = Dataset.from_files(f"{folder}/in/0.jsonl").load_jsonl().map(finish)
    with pytest.raises(PipelineError, match="0.jsonl changed while the pipeline ran"):
        create_backend("sync").execute(rows)


@pytest.mark.parametrize("harm", ["", "{", "[1]", "[{}]"])
def test_cut_record_counts_as_absent(folder: Path, undisturbed: dict[str, bytes], harm: str) -> None:
    backend(folder).execute(pipeline(folder, Calls(folder / "calls")))
    (manifest,) = (folder / "scratch").glob("01-*.json")
    manifest.write_text(harm)
    backend(folder).execute(pipeline(folder, Calls(folder / "calls")))
    assert outputs(folder) == undisturbed


def test_step_removes_old_shards_of_a_lost_attempt(folder: Path) -> None:
    """The first attempt writes three of its six shards; the next one has seven inputs."""
    output = f"{folder}/step"

    def made(config: str) -> Dataset[str]:
        rows = Dataset.from_files(f"{folder}/in/*.jsonl").load_jsonl().map(Calls(folder / "calls"))
        return rows.write_jsonl(f"{config}/{{shard}}-of-{{total}}.jsonl")

    config = DatasetStepConfig(made, output, output, {"on_error": "raise"})
    (folder / "fatal").write_text("3")
    set_flow_backend(create_backend("sync"))
    try:
        with pytest.raises(Lost):
            run_dataset_step(config)
        (folder / "fatal").unlink()
        (folder / "in" / "6.jsonl").write_text('{"id": "6-0"}\n')
        assert run_dataset_step(config)["count"] == SHARDS + 1
    finally:
        set_flow_backend(None)
    assert sorted(path.name for path in Path(output).glob("*.jsonl")) == [f"{shard}-of-7.jsonl" for shard in range(7)]
