"""Operations of data sets beside the same ones on plain lists, on the backends of this process."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.datasets import Backend, Dataset, PipelineError, ShardInfo, counters

Shards = list[list[Any]]


def run(dataset: Dataset[Any], **options: Any) -> Any:
    return Backend(**{"kind": "sync", **options}).execute(dataset)


def flat(shards: Shards) -> list[Any]:
    return list(itertools.chain.from_iterable(shards))


def is_odd(row: int) -> bool:
    return row % 2 == 1


def twice(row: int) -> list[int]:
    return [row, row + 1]


def numbered(rows: Iterator[int], shard: ShardInfo) -> Iterator[int]:
    return (row + shard.shard_idx - shard.total_shards for row in rows)


def last_digit(row: int) -> int:
    return row % 10


def total(key: int, rows: Iterator[int]) -> int:
    return 100 * sum(rows) + key


class Step(NamedTuple):
    """An operation, and the same one on the rows of each shard."""

    of: Callable[[Dataset[int]], Dataset[int]]
    oracle: Callable[[Shards], Shards]


def per_shard(of: Callable[[Dataset[int]], Dataset[int]], oracle: Callable[[list[int]], list[int]]) -> Step:
    return Step(of, lambda shards: [oracle(rows) for rows in shards])


def groups(shards: Shards, key: Callable[[Any], Any]) -> list[tuple[Any, list[Any]]]:
    rows = sorted(flat(shards), key=key)  # stable, as the shuffle is
    return [(key, list(group)) for key, group in itertools.groupby(rows, key)]


IN_SHARDS = {
    "map": per_shard(lambda data: data.map(abs), lambda rows: [abs(row) for row in rows]),
    "filter": per_shard(lambda data: data.filter(is_odd), lambda rows: [row for row in rows if row % 2]),
    "flat_map": per_shard(lambda data: data.flat_map(twice), lambda rows: flat([twice(row) for row in rows])),
    "take": per_shard(lambda data: data.take_per_shard(2), lambda rows: rows[:2]),
    "batch": per_shard(
        lambda data: data.batch(2).map(sum), lambda rows: [sum(rows[at : at + 2]) for at in range(0, len(rows), 2)]
    ),
    "map_shard": Step(
        lambda data: data.map_shard(numbered),
        lambda shards: [[row + at - len(shards) for row in rows] for at, rows in enumerate(shards)],
    ),
}
TO_ONE = {
    "group_by": Step(
        lambda data: data.group_by(last_digit, reducer=total, num_output_shards=1),
        lambda shards: [[total(key, iter(rows)) for key, rows in groups(shards, last_digit)]],
    ),
    "largest": Step(
        lambda data: data.group_by(
            last_digit, reducer=lambda _, rows: next(rows), sort_by=lambda row: -row, num_output_shards=1
        ),
        lambda shards: [[max(rows) for _, rows in groups(shards, last_digit)]],
    ),
    "combined": Step(
        lambda data: data.group_by(
            last_digit,
            reducer=lambda _, rows: max(rows),
            combiner=lambda _, rows: max(rows),
            num_output_shards=1,
        ),
        lambda shards: [[max(rows) for _, rows in groups(shards, last_digit)]],
    ),
    "deduplicate": Step(
        lambda data: data.deduplicate(last_digit, 1),
        lambda shards: [[rows[0] for _, rows in groups(shards, last_digit)]],
    ),
    "reduce": Step(lambda data: data.reduce(sum), lambda shards: [[sum(flat(shards))]]),
    "count": Step(lambda data: data.count(), lambda shards: [[len(flat(shards))]]),
    "reshard": Step(lambda data: data.reshard(1), lambda shards: [flat(shards)]),
}
STEPS = {**IN_SHARDS, **TO_ONE}


def split(rows: Iterator[list[Any]], _: ShardInfo) -> Iterator[Any]:
    return itertools.chain.from_iterable(rows)


@pytest.mark.slow
@given(
    st.lists(st.lists(st.integers(-1000, 1000), max_size=6), max_size=4),
    st.lists(st.sampled_from(list(STEPS)), max_size=5),
)
def test_chains_give_what_the_same_gives_on_lists(shards: Shards, names: list[str]) -> None:
    data: Dataset[Any] = Dataset.from_list(shards).map_shard(split)
    for name in names:
        data, shards = STEPS[name].of(data), STEPS[name].oracle(shards)
    assert run(data) == flat(shards)


def of(*shards: list[Any]) -> Dataset[Any]:
    return Dataset.from_list(shards).map_shard(split)


@pytest.mark.parametrize("name", ["data-{shard:03d}-of-{total}.jsonl.gz", "{basename}.jsonl.zst", "{shard}.parquet"])
def test_same_bytes_are_written_by_each_run_and_backend(tmp_path: Path, name: str) -> None:
    rows = of(*([{"id": number % 97, "shard": shard} for number in range(500)] for shard in range(3)))
    found = []
    for folder, kind in enumerate(["sync", "sync", "threadpool", "threadpool"]):
        data, pattern = rows.deduplicate(lambda row: row["id"], 4), f"{tmp_path}/{folder}/{name}"
        paths = run(data.write_parquet(pattern) if name.endswith("parquet") else data.write_jsonl(pattern), kind=kind)
        found.append([(Path(path).name, Path(path).read_bytes()) for path in paths])
        assert len(found[-1]) == 4
    assert found.count(found[0]) == 4


def test_pipeline_goes_on_from_files_it_wrote_in_bucket(gs_folder: str) -> None:
    written = of([{"a": 2}, {"a": 1}], [{"a": 2}]).write_jsonl(f"{gs_folder}//one-{{shard}}.jsonl.gz")
    data = written.load_jsonl(include_file_paths=True).deduplicate(lambda row: row["a"], 1)
    assert run(data) == [
        {"a": 1, "file_path": f"{gs_folder}/one-0.jsonl.gz"},
        {"a": 2, "file_path": f"{gs_folder}/one-0.jsonl.gz"},
    ]
    assert run(Dataset.from_files(f"{gs_folder}/one-{{0,1}}.jsonl.*").load_file(["a"]).count()) == [3]


def fits(total: int, row: int) -> tuple[bool, int]:
    return total + row <= 10, total + row


def test_windows_close_before_row_that_does_not_join() -> None:
    assert run(of([4, 6, 1, 20, 3, 7, 1], []).window_by(fits, 0)) == [[4, 6], [1], [20], [3, 7], [1]]
    assert run(of([1, 2, 3], [4]).window(2)) == [[1, 2], [3], [4]]


LEFT = [("a", 1), ("b", 2), ("b", 3), ("d", 4)]
RIGHT = [("b", "x"), ("b", "y"), ("c", "z"), ("d", "w")]
PAIRS = [(2, "x"), (2, "y"), (3, "x"), (3, "y"), (4, "w")]


def first(row: Any) -> Any:
    return row[0]


def joined(left: Dataset[Any], right: Dataset[Any], how: str = "inner") -> Dataset[Any]:
    return left.sorted_merge_join(right, first, first, lambda one, other: (one[1], other and other[1]), how)


@pytest.mark.parametrize(
    "left, right, how, expected",
    [
        (LEFT, RIGHT, "inner", PAIRS),
        (LEFT, RIGHT, "left", [(1, None), *PAIRS]),
        (LEFT, [], "left", [(number, None) for _, number in LEFT]),
        ([], RIGHT, "left", []),
    ],
)
def test_join_gives_each_pair_of_rows_with_one_key(left: Any, right: Any, how: str, expected: Any) -> None:
    assert run(joined(of(left), of(right), how)) == expected


def test_join_of_grouped_sets_merges_their_rows() -> None:
    left = of([{"k": number % 5, "a": number} for number in range(8)])
    grouped = left.group_by(lambda row: row["k"], reducer=lambda _, rows: rows, num_output_shards=3)
    right = of([{"k": number, "b": number} for number in range(3)]).deduplicate(lambda row: row["k"], 3)
    found = run(grouped.sorted_merge_join(right, lambda row: row["k"], lambda row: row["k"], how="left"))
    assert sorted(found, key=lambda row: row["a"]) == [
        {"k": number % 5, "a": number, **({"b": number % 5} if number % 5 < 3 else {})} for number in range(8)
    ]


class Strange(Exception):
    """Has no text, and cannot be pickled."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(lambda: first + second)

    def __str__(self) -> str:
        raise RuntimeError


def strange(row: Any) -> Any:
    raise Strange(1, 2)


def stopped(row: Any) -> Any:
    raise StopIteration(row)


def halves(row: Any) -> Iterator[Any]:
    yield row
    raise StopIteration(row)


def broken_json(row: Any) -> Any:
    return json.loads("{")


NAN = float("nan")
LEFT_ROW, RIGHT_ROW = (Dataset.from_list([(1, side)]) for side in ("left", "right"))


@pytest.mark.parametrize(
    "data, told",
    [
        (
            Dataset.from_list([1, 0]).map(lambda row: 1 / row),
            ["ZeroDivisionError", "test_pipelines.py:", "in <lambda>", "the row was 0"],
        ),
        (of([1]).map(strange), ["Strange: its text cannot be shown", "in strange"]),
        (of([1]).map(stopped), ["StopIteration", "in stopped"]),
        (of([1]).flat_map(lambda row: None), ["the function of flat_map returned None: return or yield rows"]),
        (of([1]).map_shard(lambda rows, shard: None), ["the function of map_shard returned None"]),
        (of([1]).filter(stopped), ["StopIteration", "in stopped"]),
        (of([1]).flat_map(stopped), ["StopIteration", "in stopped"]),
        (of([1]).flat_map(halves), ["StopIteration", "in halves"]),
        (of([1]).window_by(lambda _, row: stopped(row)), ["StopIteration", "in stopped"]),
        (of([1]).deduplicate(stopped), ["StopIteration", "in stopped"]),
        (joined(of([1]).map(lambda row: [row, 1]), of([[1]]).map(stopped)), ["StopIteration", "in stopped"]),
        (of([1]).map(broken_json), ["JSONDecodeError: Expecting property name", "in broken_json"]),
        (of([1]).map(lambda row: sys.exit("over")), ["SystemExit: over", "the row was [1]"]),
        (
            Dataset.from_list([{"a": 1}]).select("a", "b"),
            ["The row has no column 'b': it has 'a'", "the row was {'a': 1}"],
        ),
        (of([1]).select("a"), ["The row has no column 'a': it is 1"]),
        (of([1]).load_jsonl(), ["A reader got a int, and needs the path of a file"]),
        (of([[1], "a"]).deduplicate(lambda row: row), ["The key [1] is a list: give strings"]),
        (of([1, NAN]).deduplicate(lambda row: row), ["The key is NaN", "the row was [1, nan]"]),
        (of([1, NAN]).deduplicate(lambda row: ("a", row)), ["The key is NaN"]),
        (of([1]).group_by(first, reducer=total, sort_by=lambda _: NAN), ["'int' object is not subscriptable"]),
        (of([[1]]).group_by(first, reducer=total, sort_by=lambda _: NAN), ["sort_by returned NaN"]),
        (of(["a", 1]).deduplicate(lambda row: row, 1), ["cannot be compared", "'str'", "'int'", "such as str(key)"]),
        (of(["a"], [1]).deduplicate(lambda row: row, 1), ["cannot be compared", "'str'", "'int'", "such as str(key)"]),
        (of([(row,) for row in ("a", 1)]).group_by(len, reducer=total, sort_by=first), ["cannot be compared", "'int'"]),
        (of([1]).map(lambda row: lambda: row).reshard(2), ["A row of the type function cannot go to another shard"]),
        (joined(of([[2], [1]]), of([[1]])), ["the left data set is not sorted by its key: 1 follows 2"]),
        (joined(of([[1, 1]]), of([[2], [1]])), ["the right data set is not sorted by its key: 1 follows 2"]),
        (joined(LEFT_ROW.map(broken_json), RIGHT_ROW), ["the row was (1, 'left')", "in broken_json"]),
        (joined(LEFT_ROW, RIGHT_ROW.map(broken_json)), ["the row was (1, 'right')", "in broken_json"]),
        (LEFT_ROW.sorted_merge_join(RIGHT_ROW, first, first), ["TypeError", "the row was (1, 'left')"]),
        (joined(of([["a"]]), of([[1]])), ["keys of both sides cannot be compared", "'str'", "'int'"]),
    ],
)
def test_failing_row_is_told_with_place_and_frame(data: Dataset[Any], told: list[str]) -> None:
    with pytest.raises(PipelineError) as raised:
        run(data)
    assert [part for part in told if part not in str(raised.value)] == []
    assert str(raised.value).count("\n") <= 2


def counted(row: int) -> int:
    counters.increment("seen")
    counters.increment("sum", row)
    return 12 // row


@pytest.mark.parametrize("kind", ["sync", "threadpool"])
def test_counters_are_those_of_all_shards(kind: str) -> None:
    counters.increment("outside")
    assert run(of([1, 2], [3, 0], [4]).map(counted), kind=kind, on_error="skip").counters == {"seen": 5, "sum": 10}


ROW_BY_ROW: dict[str, Dataset[Any]] = {
    "map": of([3, 0], [4]).map(lambda row: 12 // row),
    "filter": of([4, 0], [3]).filter(lambda row: 12 // row),
    "flat_map": of([4, 0], [3]).flat_map(lambda row: [row for _ in range(12 // row)][:1]),
    "key": of([4, 0], [3]).group_by(lambda row: 12 // row, reducer=lambda _, rows: sum(rows), num_output_shards=1),
    "reducer": of([4, 0], [3]).group_by(lambda row: -row, reducer=lambda key, _: 12 // key + 7, num_output_shards=1),
    "combiner": of([[1, 4], [2, 0]], [[1, 3]]).sorted_merge_join(
        of([[1], [2]], [[1]]), first, first, lambda row, _: 12 // row[1]
    ),
}


@pytest.mark.parametrize("on_error", ["skip", "quarantine"])
@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_failing_rows_are_left_out_and_counted(name: str, on_error: str) -> None:
    found = run(ROW_BY_ROW[name], on_error=on_error)
    assert (sorted(found), found.rejected) == ([3, 4], 1)


def test_quarantined_rows_lie_beside_output(tmp_path: Path) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    data = Dataset.from_list([{"half": "\ud800"}, {1: {2}}, cycle, {"good": 1}])
    assert run(data.write_jsonl(f"{tmp_path}/out/{{shard}}.jsonl"), on_error="quarantine").rejected == 3
    assert [path.read_text() for path in sorted(tmp_path.glob("out/*.jsonl"))] == ["", "", "", '{"good":1}\n']
    kept = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("out/.quarantine/*"))]
    assert [entry["row"] for entry in kept] == [{"half": "\ud800"}, {"1": "{2}"}, "[[[[...]]]]"]
    assert all(entry["place"] == "row 1" and "A row has no JSON form" in entry["error"] for entry in kept)


def test_left_out_row_is_an_error_of_later_run_that_allows_none(tmp_path: Path) -> None:
    data = Dataset.from_list([1, 0]).map(lambda row: 1 / row).write_jsonl(f"{tmp_path}/out/{{shard}}.jsonl")
    scratch = {"scratch": f"{tmp_path}/scratch"}
    assert [run(data, on_error="skip", **scratch).rejected for _ in range(2)] == [1, 1]
    for _ in range(2):
        with pytest.raises(PipelineError, match="1 of 2 shards failed"):
            run(data, **scratch)
    assert run(data, on_error="skip", **scratch).rejected == 1


def halves(row: int) -> Iterator[float]:
    """Yield twice before an error, so that half of what is made of a row could be left."""
    yield from (1.0, 2.0)
    yield 1 / row


@pytest.mark.parametrize(
    "data",
    [
        of([0, 1], [1]).flat_map(halves),
        of([0, 1], [2]).group_by(lambda row: row, reducer=lambda key, _: halves(min(key, 1)), num_output_shards=1),
    ],
    ids=["flat_map", "reducer"],
)
def test_row_that_is_left_out_leaves_nothing_of_itself(data: Dataset[Any]) -> None:
    found = run(data, on_error="skip")
    assert (found, found.rejected) == ([1.0, 2.0, 1.0] * 2, 1)


def test_error_after_many_results_of_one_row_fails_its_shard() -> None:
    data = of([0]).flat_map(lambda row: (1 // (number < 5_000) for number in range(9_999)))
    with pytest.raises(PipelineError, match="ZeroDivisionError"):
        run(data, on_error="skip")


ALL_FAIL: dict[str, Dataset[Any]] = {
    "map": of([3, 0], [4]).map(lambda row: row["text"]),
    "select": of([{"id": 1}], [{"id": 2}]).select("text"),
    "key": of([3, 0], [4]).deduplicate(lambda row: row["text"]),
    "rest": of([3, 0], [4, 1]).filter(bool).map(lambda row: row["text"]),
}


@pytest.mark.parametrize("name", ALL_FAIL)
def test_pipeline_all_of_whose_rows_fail_is_an_error(tmp_path: Path, name: str) -> None:
    """Else it would leave empty files, and a later stage or step would tell another cause."""
    data = ALL_FAIL[name].write_parquet(f"{tmp_path}/out/{{shard}}.parquet", skip_existing=True)
    for on_error in ("skip", "quarantine", "skip"):
        with pytest.raises(PipelineError) as raised:
            run(data, on_error=on_error, scratch=f"{tmp_path}/scratch")
        found = re.search(r": (2|3) rows failed, and none is left: (.*)", str(raised.value))
        assert found and ("TypeError" in found[2] or "no column 'text': it has 'id'" in found[2]), str(raised.value)
        assert ("out/.quarantine" in found[2]) is (on_error == "quarantine")
        assert not list(tmp_path.glob("out/*.parquet"))


def test_files_that_were_there_stay_if_all_other_rows_fail(tmp_path: Path) -> None:
    (tmp_path / "0.jsonl").write_text("there")
    data = of([1], [0]).map(lambda row: 1 / row / 0).write_jsonl(f"{tmp_path}/{{shard}}.jsonl", skip_existing=True)
    with pytest.raises(PipelineError, match=": 1 rows failed, and none is left"):
        run(data, on_error="skip")
    assert [path.name for path in tmp_path.iterdir()] == ["0.jsonl"]


def test_mistake_in_code_or_killed_process_is_no_bad_row() -> None:
    def killed(row: int) -> int:
        if row:
            raise ChildProcessError("it was killed")
        return row

    with pytest.raises(PipelineError, match="NameError: name 'missing' is not defined"):
        run(of([1]).map(lambda row: missing), on_error="skip")  # type: ignore[name-defined] # noqa: F821
    with pytest.raises(PipelineError, match="ChildProcessError: it was killed"):
        run(of([0, 1]).map(killed), on_error="skip")


@pytest.mark.parametrize("catches", [False, True])
def test_rows_that_cannot_be_read_are_no_error_of_reducer(catches: bool) -> None:
    """With ``on_error="skip"``, the rest of the shard would be lost without a word."""

    def reducer(_: Any, rows: Iterator[Any]) -> list[Any]:
        try:
            return list(rows)
        except TypeError:
            if not catches:
                raise
            return []

    data = of(["a", "b"], [1]).group_by(lambda row: row, reducer=reducer, num_output_shards=1)
    with pytest.raises(PipelineError, match="cannot be compared"):
        run(data, on_error="skip")


NUMBERS = of([1])


@pytest.mark.parametrize(
    "build, told",
    [
        (lambda: Dataset.from_files("*", approx_shard_bytes="big"), "from_files: approx_shard_bytes is 'big': give a"),
        (lambda: NUMBERS.map(1), "map(1): give a function"),
        (lambda: NUMBERS.group_by("id", reducer=total), "group_by(key='id'): give a function"),
        (lambda: NUMBERS.group_by(first, reducer=None), "group_by(reducer=None): give a function"),
        (lambda: NUMBERS.group_by(first, reducer=total, combiner=1), "group_by(combiner=1): give a function"),
        (lambda: NUMBERS.group_by(first, reducer=total, num_output_shards=0), "num_output_shards=0"),
        (lambda: NUMBERS.deduplicate("id"), "deduplicate('id'): give a function"),
        (lambda: NUMBERS.reduce(sum, 1), "reduce(1): give a function"),
        (lambda: NUMBERS.sorted_merge_join([1], first, first), "sorted_merge_join([1]): give a Dataset"),
        (lambda: NUMBERS.sorted_merge_join(NUMBERS, first, "a"), "sorted_merge_join('a'): give a function"),
        (lambda: NUMBERS.sorted_merge_join(NUMBERS, first, first, how="outer"), "'inner' and 'left'"),
        (lambda: NUMBERS.take_per_shard(-1), "take_per_shard(n=-1)"),
        (lambda: NUMBERS.window(True), "window(size=True)"),
        (lambda: NUMBERS.reshard(2.0), "reshard(num_shards=2.0)"),
        (lambda: NUMBERS.select(), "columns=(): give a list of names"),
        (lambda: NUMBERS.load_parquet("text"), "columns='text': give a list of names"),
        (lambda: NUMBERS.load_jsonl(True, ""), "load_jsonl(file_path_column=''): give a text"),
        (lambda: NUMBERS.load_zip_members(None), "load_zip_members(pattern=None): give a text"),
        (lambda: NUMBERS.write_parquet("a", {"a": int}), "write_parquet(schema={'a': <class 'int'>}): give a"),
        (lambda: NUMBERS.write_jsonl(" "), "write_jsonl(' '): give a pattern or a function"),
        (lambda: NUMBERS.write_jsonl("a{shard"), "write_jsonl('a{shard'): expected '}' before end of string"),
        (lambda: NUMBERS.write_levanter_cache("a/{shard}"), "write_levanter_cache('a/{shard}'): give a folder"),
        (lambda: NUMBERS.write_levanter_cache("a", {"a": {1}}), "write_levanter_cache(metadata={'a': {1}}): Object of"),
        (lambda: NUMBERS.write_binary("{part}"), "{part} is unknown: there are {shard} and {total}"),
        (lambda: NUMBERS.write_jsonl("{}"), "{} is unknown"),
        (lambda: NUMBERS.write_jsonl("{shard:999999999d}"), "{shard:999999999d} is unknown"),
        (lambda: NUMBERS.write_jsonl("{shard:{total}}"), "{shard:{total}} is unknown"),
        (lambda: NUMBERS.write_jsonl("{shard.real!r}"), "{shard.real!r} is unknown"),
        (lambda: NUMBERS.write_jsonl("{basename:05d}"), "{basename:05d} is unknown"),
    ],
)
def test_wrong_argument_is_refused_where_it_is_given(build: Callable[[], Any], told: str) -> None:
    with pytest.raises(ValueError) as raised:
        build()
    assert told in str(raised.value)


def test_dry_run_advises_against_many_shards_and_parts(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = Dataset.from_list(range(60_000)).reshard(200)
    run(numbers.deduplicate(abs, num_output_shards=60_000).map(abs).deduplicate(abs, 1), dry_run=True)
    first, second, third = capsys.readouterr().out.splitlines()[:3]
    assert "into 200 shards. So many shards cost more to follow than to process" in first
    assert "into 60,000 shards. Its 12,000,000 parts are a request or two each" in second
    assert "So many shards" in third


@pytest.mark.parametrize(
    "data, told",
    [
        (of([1], [2]).write_jsonl("a.jsonl"), "2 of 2 shards have the name 'a.jsonl'"),
        (of([1], [2]).write_jsonl(lambda shard, total: "a.jsonl"), "2 of 2 shards have the name"),
        (of([1]).write_jsonl(lambda shard, total: None), "the function of names returned None for 0"),
        (of([1]).write_jsonl("a").load_jsonl().write_jsonl("a"), "a would be written twice"),
        (
            Dataset.from_list(range(20_000)).deduplicate(abs),
            "each of 20,000 shards would read a part of 20,000 files, 400,000,000 in all, and there may be 200,000,000",
        ),
        (joined(of([1]), of([1], [2])), "the left data set has 1 shards and the right one 2"),
    ],
)
def test_pipeline_that_cannot_work_is_refused_before_it_runs(data: Dataset[Any], told: str) -> None:
    with pytest.raises(PipelineError, match=re.escape(told)):
        run(data)
