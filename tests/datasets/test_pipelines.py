"""Operations of data sets beside the same ones on plain lists, on the backends of this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tradewind.datasets import Backend, Dataset, ShardInfo

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


def split(rows: Iterator[int], shard: ShardInfo) -> Iterator[int]:
    return itertools.chain.from_iterable(rows)  # type: ignore[arg-type]


@given(
    st.lists(st.lists(st.integers(-1000, 1000), max_size=6), max_size=4),
    st.lists(st.sampled_from(list(STEPS)), max_size=5),
)
def test_chains_give_what_the_same_gives_on_lists(shards: Shards, names: list[str]) -> None:
    data: Dataset[Any] = Dataset.from_list(shards).map_shard(split)
    for name in names:
        data, shards = STEPS[name].of(data), STEPS[name].oracle(shards)
    assert run(data) == flat(shards)
