"""Files of Zephyr's time import it unchanged: with no Zephyr installed, and with one that has removed their names."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from tests.marin.checkouts import put
from tradewind.datasets import PipelineError
from tradewind.marin import zephyr as names
from tradewind.marin.zephyr.conversion import converted
from tradewind.marin.zephyr.flows import both_arguments, create_backend, flow_backend, write_jsonl_file
from tradewind.serialization.references import CodeFolder, Reference, find_legacy_modules, worker_setup
from tradewind.serialization.spec import OUTPUT_VARIABLE

FILE = """
    from collections.abc import Iterator

    from zephyr import Dataset, ShardInfo, create_backend, flow_backend, load_file, load_jsonl, load_parquet
    from zephyr import set_flow_backend
    from zephyr.backend_factory import flow_backend as same
    from zephyr.readers import SUPPORTED_EXTENSIONS, open_file
    from zephyr.writers import atomic_rename, write_jsonl_file, write_parquet_file

    assert same is flow_backend

    def run(pipeline, kind="sync"):
        backend = create_backend(kind, max_parallelism=10, chunk_size=5, max_retries=3)
        return list(backend.execute(pipeline, verbose=True))

    def read(folder):
        return Dataset.from_files(f"{folder}/in/**/*.jsonl.gz").flat_map(load_jsonl)

    def filtered(folder):
        rows = Dataset.from_files(f"{folder}/in", "**/*.jsonl.gz").flat_map(load_jsonl)
        rows = rows.filter(lambda row: row["score"] > 0.7).map(lambda row: {**row, "new": True})
        return run(rows.write_jsonl(f"{folder}//out/{{shard:05d}}-of-{{total:05d}}.jsonl.gz"))

    def grouped(folder):
        def count(key, items):
            return [key, sum(1 for _ in items)]
        return sorted(run(read(folder).group_by(lambda row: row["cat"], count, num_output_shards=2)))

    def deduplicated(folder):
        return sorted(run(read(folder).map(lambda row: row["cat"]).deduplicate(key=lambda cat: cat)))

    def windows(folder):
        def sums(windows: Iterator[list[int]]) -> Iterator[int]:
            return (sum(window) for window in windows)
        numbers = Dataset.from_list([[1, 2, 3, 4, 5]]).flat_map(lambda numbers: numbers)
        with_shard = numbers.map_shard(lambda rows, shard: [[*rows, shard.total_shards]])
        by_size = numbers.window_by(lambda total, n: (total + n <= 5, total + n), 0)
        return [run(each) for each in (numbers.window(2).map_shard(sums).reshard(2), with_shard, by_size)]

    def reduced(folder):
        return run(read(folder).map(lambda row: 1).reduce(sum)) + run(Dataset.from_list([1, 2, 3]).take_per_shard(1))

    def joined(folder):
        def keyed(numbers, **more):
            rows = Dataset.from_list(numbers).map(lambda number: {"id": number, **more})
            return rows.group_by(key=id_of, reducer=lambda key, items: next(iter(items)), num_output_shards=2)
        both = keyed([1, 2, 3]).sorted_merge_join(keyed([1, 3], b=1), left_key=id_of, right_key=id_of)
        return sorted(run(both), key=id_of)

    def id_of(row):
        return row["id"]

    def parquet(folder):
        rows = read(folder).select("id").write_parquet(f"{folder}/parquet/{{shard}}.parquet", batch_size=9)
        rows = [row for path in run(rows) for row in load_parquet(path, columns=["id"])]
        return [*rows[:1], list(load_file(f"{folder}/parquet/0.parquet"))[1]]

    def opened(folder):
        with open_file(f"{folder}/in/0/a.jsonl.gz") as file:
            return [len(file.readlines()), ".jsonl.gz" in SUPPORTED_EXTENSIONS]

    def noted(folder):
        def of_each(shards):
            noted = {}
            run(Dataset.from_list([1, 2]).map(lambda number: noted.setdefault(number, number)), "threadpool")
            return [*shards, len(noted)]
        return [run(Dataset.from_list(["a", "b", "c"]).map_shard(of_each), "threadpool") for _ in range(2)]

    def written(folder):
        with atomic_rename(f"{folder}/renamed") as path, open(path, "w") as file:
            file.write("text")
        counts = [write_jsonl_file([{"a": 1}], f"{folder}/new/a.jsonl.gz")["count"]]
        counts.append(write_parquet_file([{"a": 1}, {"a": 2}], f"{folder}/new/a.parquet")["count"])
        return [open(f"{folder}/renamed").read(), *counts]

    def changed(folder):
        set_flow_backend(create_backend("sync", max_parallelism=7))
        try:
            return [flow_backend().max_parallelism, flow_backend(memory="2GB", chunk_size=3).kind]
        finally:
            set_flow_backend(None)
"""
RESULTS: dict[str, Any] = {
    "grouped": [[0, 8], [1, 6], [2, 6]],
    "deduplicated": [0, 1, 2],
    "windows": [[3, 5, 7], [[1, 2, 3, 4, 5, 1]], [[1, 2], [3], [4], [5]]],
    "reduced": [20, 1, 2, 3],
    "joined": [{"id": 1, "b": 1}, {"id": 3, "b": 1}],
    "parquet": [{"id": "0-0"}, {"id": "0-1"}],
    "opened": [10, True],
    "noted": [["a", 2, "b", 2, "c", 2]] * 2,
    "written": ["text", 1, 2],
    "changed": [7, "sync"],
}
"""Function of the file → what it returns."""


@pytest.fixture
def restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let a test import Zephyr afresh, as a step does; restore this process afterwards."""
    made_here = ("zephyr", "users_file")
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in made_here}
    for name in before:
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(names, "_provided", set())
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in made_here]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture(params=["absent", "installed"])
def step(request: pytest.FixtureRequest, restored: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Import as a step does, where the Zephyr of today is installed or where none is."""
    if request.param == "absent":
        hide_zephyr(monkeypatch)
    find_legacy_modules()
    return restored


def hide_zephyr(monkeypatch: pytest.MonkeyPatch) -> None:
    find = PathFinder.find_spec
    monkeypatch.setattr(
        PathFinder, "find_spec", lambda name, *more: None if name.partition(".")[0] == "zephyr" else find(name, *more)
    )


def test_unchanged_file_runs_on_tradewinds_engine(step: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OUTPUT_VARIABLE, str(step / "step"))
    for number in range(2):
        rows = [{"id": f"{number}-{row}", "score": row / 10, "cat": row % 3} for row in range(10)]
        put(step / f"in/{number}/a.jsonl.gz", "").write_bytes(
            gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
        )
    put(step / "users_file.py", FILE)
    found = {name: Reference("users_file", name).load()(step) for name in RESULTS}
    assert json.loads(json.dumps(found)) == RESULTS
    paths = Reference("users_file", "filtered").load()(step)
    assert paths == [f"{step}/out/0000{number}-of-00002.jsonl.gz" for number in range(2)]
    lines = [json.loads(line) for path in paths for line in gzip.decompress(Path(path).read_bytes()).splitlines()]
    assert [line["id"] for line in lines] == ["0-8", "0-9", "1-8", "1-9"] and all(line["new"] for line in lines)
    assert worker_setup() is not None, "workers of Ray import the file, too"


def test_name_that_nobody_has_is_an_import_error(step: Path) -> None:
    for text in ("from zephyr import never_there", "import zephyr.never_there", "from zephyr.readers import never"):
        with pytest.raises(ImportError, match="never"):
            exec(text)


def test_installed_zephyr_keeps_its_own_names(restored: Path) -> None:
    own = importlib.import_module("zephyr").Dataset
    find_legacy_modules()
    zephyr = importlib.import_module("zephyr")
    assert zephyr.Dataset is own and own.__module__ == "zephyr.dataset"
    assert not names.is_provided() and zephyr.flow_backend.__module__.startswith("tradewind.") and names.is_provided()


def test_workers_import_zephyr_that_a_file_has_only_imported(restored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_zephyr(monkeypatch)
    find_legacy_modules()
    importlib.import_module("zephyr")
    assert names.is_provided()


def test_zephyr_of_a_checkout_does_not_hide_the_installed_one(tmp_path: Path) -> None:
    for file in ("experiments/a.py", "src/marin/__init__.py", "lib/zephyr/src/zephyr/__init__.py", "lib/b/src/b.py"):
        put(tmp_path / file, "")
    assert CodeFolder(tmp_path).sources() == ["src", "lib/b/src"]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("load_vortex()", "LoadFileOp.format=vortex.* reads whole JSON lines and Parquet"),
        ("load_parquet(approx_shard_bytes=5)", "is not in Tradewind's engine"),
        ("write_vortex('a')", "writes JSON lines, Parquet and bytes"),
        ("sorted_merge_join(theirs.load_vortex(), len, len)", "reads whole JSON lines"),
    ],
)
def test_operation_without_counterpart_is_refused_by_name(call: str, problem: str) -> None:
    theirs = importlib.import_module("zephyr").Dataset.from_list(["a"])
    with pytest.raises(PipelineError, match=problem):
        converted(eval(f"theirs.{call}", {"theirs": theirs, "len": len}))


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: create_backend("local"), "backend 'local': there are ray, threadpool, sync"),
        (lambda: create_backend("ray", runtime_env={}), "create_backend: got an unexpected keyword .*'runtime_env'"),
        (lambda: flow_backend(resources={}), "flow_backend: got an unexpected keyword .*'resources'"),
        (lambda: create_backend("sync").execute(["a"]), r"execute\(\['a'\]\): give a Dataset"),
        (lambda: write_jsonl_file([], ""), "write_jsonl_file\\(''\\): give a path"),
    ],
)
def test_bad_call_is_refused_by_name(call: Any, problem: str) -> None:
    with pytest.raises((ValueError, PipelineError), match=problem):
        call()


def test_function_of_rows_alone_is_told_from_one_of_both() -> None:
    def rows_and_seen(rows: Any, seen: Any = None) -> Any:
        return seen

    assert both_arguments(rows_and_seen)(iter(()), None) is None  # type: ignore[arg-type]
    assert list(both_arguments(enumerate)(iter("a"), None)) == [(0, "a")]  # type: ignore[arg-type]
    assert both_arguments(lambda rows, shard: shard)(iter(()), 5) == 5  # type: ignore[arg-type]
