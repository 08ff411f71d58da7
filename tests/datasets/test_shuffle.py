"""Shuffles with little memory: several runs, merges in steps, keys of all types."""

from __future__ import annotations

import io
import itertools
import random
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.datasets.dataset import Shuffle
from tradewind.datasets.rows import Rows
from tradewind.datasets.shuffle import DamagedShuffleError, ShuffleFile, ShuffleWriter, bucket_of, read_bucket
from tradewind.storage import file_system_at

LITTLE = 1 << 22
"""Memory of which a run gets a MiB, and a merge 16 segments."""
MUCH = 1 << 30


def all_of(_: Any, rows: Iterator[Any]) -> Iterator[Any]:
    return rows


def by(key: Callable[[Any], Any] | None, **options: Any) -> Shuffle:
    return Shuffle("group_by", None, key, reducer=None if key is None else options.pop("reducer", all_of), **options)


def write(shuffle: Shuffle, shards: list[Any], folder: Path, memory: int, buckets: int) -> list[ShuffleFile]:
    files = []
    for number, rows in enumerate(shards):
        file = io.BytesIO()
        _, runs = ShuffleWriter(shuffle, buckets, number, Rows(), memory).write(rows, file)
        path = folder / f"{number}.rows"
        path.write_bytes(file.getvalue())
        files.append(ShuffleFile(str(path), runs, buckets, path.stat().st_size))
    return files


def shuffled(shuffle: Shuffle, shards: list[Any], folder: Path, memory: int = MUCH, buckets: int = 2) -> list[Any]:
    files = write(shuffle, shards, folder, memory, buckets)
    return [list(read_bucket(files, bucket, shuffle, Rows(), memory)) for bucket in range(buckets)]


def large_rows(shards: int, rows: int) -> list[list[tuple[int, str]]]:
    """Return rows of 100 kB with keys and texts at random, ten to a run of ``LITTLE``."""
    random.seed(0)
    texts = [random.choice("abc") * 100_000 for _ in range(7)]
    return [[(random.randrange(9), random.choice(texts)) for _ in range(rows)] for _ in range(shards)]


@pytest.mark.parametrize(
    "shuffle",
    [
        by(lambda row: row[0]),
        by(lambda row: str(row[0]), sort_by=lambda row: row[1]),
        by(lambda row: row[0], sort_by=lambda row: row[1], combiner=lambda _, rows: iter(list(rows)[::-1][:2])),
        by(None),
    ],
    ids=["by key", "sorted", "combined", "dealt"],
)
def test_little_memory_gives_the_same_rows(tmp_path: Path, shuffle: Shuffle) -> None:
    """A bucket has 24 segments of 12 runs, of which 16 are merged at once."""
    shards = large_rows(2, 120)
    (tmp_path / "little").mkdir()
    files = write(shuffle, shards, tmp_path / "little", LITTLE, 1)
    assert sum(file.runs for file in files) > 20
    few = shuffled(shuffle, shards, tmp_path / "little", LITTLE)
    if shuffle.combiner is None:
        assert few == shuffled(shuffle, shards, tmp_path)
        expected = list(itertools.chain.from_iterable(shards))
        found = list(itertools.chain.from_iterable(few))
        assert sorted(found) == sorted(expected)
    else:  # a combiner sees one run after another, so the results of little memory are more
        assert {row[0] for row in few[0]} == {row[0] for row in shuffled(shuffle, shards, tmp_path)[0]}
        assert few[0] == sorted(few[0])


def test_giant_key_streams_in_little_memory(tmp_path: Path) -> None:
    shuffle = by(lambda row: None, reducer=lambda _, rows: sum(len(row) for row in rows))
    shards = [(f"{number:07d}" * 15_000 for number in range(150)) for _ in range(2)]
    files = write(shuffle, shards, tmp_path, LITTLE, 1)
    tracemalloc.start()
    try:
        assert list(read_bucket(files, 0, shuffle, Rows(), LITTLE)) == [300 * 7 * 15_000]
        assert tracemalloc.get_traced_memory()[1] < 12 << 20, "of 31 MB"
    finally:
        tracemalloc.stop()


KEYS = [
    st.text(max_size=3),
    st.none(),
    st.integers(-(2**70), 2**70) | st.booleans() | st.floats(allow_nan=False),
    st.binary(max_size=3),
    st.tuples(st.integers(0, 2), st.text(max_size=1)),
    st.integers(-2, 2).map(np.int64) | st.integers(-2, 2) | st.sampled_from([np.float64(1.0), np.bool_(True)]),
]


@given(st.sampled_from(KEYS).flatmap(lambda keys: st.lists(st.lists(keys, max_size=5), max_size=3)), st.integers(1, 3))
def test_equal_keys_meet_in_order_of_shards_and_rows(shards: list[list[Any]], buckets: int) -> None:
    shuffle = by(lambda row: row[0], reducer=lambda key, rows: (key, [place for _, place in rows]))
    numbered = [[(key, (at, number)) for number, key in enumerate(keys)] for at, keys in enumerate(shards)]
    with tempfile.TemporaryDirectory() as folder:
        found = shuffled(shuffle, numbered, Path(folder), buckets=buckets)
    expected: dict[Any, list[Any]] = {}
    for key, place in itertools.chain.from_iterable(numbered):
        expected.setdefault(key, []).append(place)
    groups = list(itertools.chain.from_iterable(found))
    assert len(groups) == len(expected)
    assert dict(groups) == expected
    assert all(keys == sorted(keys) for keys in ([key for key, _ in bucket] for bucket in found) if len(keys) > 1)


@pytest.mark.parametrize("key", [[1], {"a": 1}, object(), float("nan"), np.float64("nan"), (1, [2])])
def test_key_without_stable_hash_is_refused(key: Any) -> None:
    with pytest.raises(ValueError):
        bucket_of(key, 4)


def test_cut_or_lost_file_is_damaged_on_each_store(any_folder: str, tmp_path: Path) -> None:
    """An error of the store itself is none: it would make the stage before run again."""
    shuffle = by(lambda row: row)
    (local,) = write(shuffle, [range(100)], tmp_path, MUCH, 1)
    file = replace(local, path=f"{any_folder}/a/b.rows")
    fs, name = file_system_at(file.path)
    fs.makedirs(name.rpartition("/")[0], exist_ok=True)
    fs.pipe_file(name, Path(local.path).read_bytes())
    assert list(read_bucket([file], 0, shuffle, Rows())) == list(range(100))
    for size in (local.size_bytes - 1, 20, 0):
        fs.pipe_file(name, Path(local.path).read_bytes()[:size])
        with pytest.raises(DamagedShuffleError, match="b.rows is gone or cut off"):
            list(read_bucket([file], 0, shuffle, Rows()))
    fs.rm(name)
    with pytest.raises(DamagedShuffleError, match="b.rows is gone or cut off"):
        list(read_bucket([file], 0, shuffle, Rows()))


def damaged(data: bytes) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    for at in range(1, len(data), 7):
        yield f"cut at {at}", data[:at]
        yield f"flipped at {at}", data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_damaged_file_is_never_taken_for_rows(tmp_path: Path) -> None:
    shuffle = by(lambda row: row)
    shard = [f"row {number}" for number in range(50)]
    (file,) = write(shuffle, [shard], tmp_path, MUCH, 3)
    whole = Path(file.path).read_bytes()
    for name, data in damaged(whole):
        Path(file.path).write_bytes(data)
        with pytest.raises(DamagedShuffleError, match="0.rows is "):
            raise AssertionError(name, [list(read_bucket([file], at, shuffle, Rows())) for at in range(3)])
