"""Shards: their contents, when a reader sees them, and which of them a cache uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tradewind.datasets.token_shards import finished_shards, write_shard
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage

FIELDS = (("input_ids", "<i4"), ("weights", "<f4"))


def batches(*lengths: int) -> Iterator[list[dict[str, Any]]]:
    """Yield one document per batch; its tokens continue the count of the previous one."""
    at = 0
    for length in lengths:
        yield [{"input_ids": list(range(at, at + length)), "weights": [at + each / 2 for each in range(length)]}]
        at += length


def test_shard_is_read_as_written(tmp_path: Path) -> None:
    written = write_shard(str(tmp_path), "k", FIELDS, batches(2, 0, 3))
    found = finished_shards(str(tmp_path), ["k"])
    assert found == {"k": written}
    assert (written.documents, written.counts) == (3, (5, 5))
    kinds = [kind for _, kind in FIELDS]
    for field in range(2):
        assert written.lengths(field).tolist() == [2, 0, 3]
    assert written.values(0, kinds, 1, 4).tolist() == [1, 2, 3]
    assert written.values(1, kinds, 1, 5).tolist() == [0.5, 2.0, 2.5, 3.0]
    assert write_shard(str(tmp_path), "empty", FIELDS, batches()).counts == (0, 0)
    assert finished_shards(str(tmp_path), ["empty"])["empty"].documents == 0
    assert finished_shards(str(tmp_path / "no"), ["k"]) == {}


def test_shard_of_failed_read_is_not_visible(tmp_path: Path) -> None:
    def broken() -> Iterator[list[dict[str, Any]]]:
        yield from batches(2)
        raise ValueError("cut")

    with pytest.raises(ValueError, match="cut"):
        write_shard(str(tmp_path), "k", FIELDS, broken())
    assert list(tmp_path.iterdir()) == []


def test_finished_shards_prunes_unwanted_with_one_listing(gcs: LocalCloudStorage, gs_folder: str) -> None:
    for key in [f"k{number}" for number in range(20)]:
        write_shard(gs_folder, key, FIELDS, batches(1))
    gcs.requests.clear()
    assert finished_shards(gs_folder, [f"k{number}" for number in range(20)]).keys() >= {"k0", "k19"}
    assert sum(gcs.requests.values()) <= 3
    assert finished_shards(gs_folder, ["k1", "other"]).keys() == {"k1"}
    assert finished_shards(gs_folder, [f"k{number}" for number in range(20)]).keys() == {"k1"}


@pytest.mark.parametrize("name", ["k.1.1.tokens.01234567.part", "k.1.tokens", "k.a.1.tokens", "k.1.1.other"])
def test_leftovers_in_shard_folder_are_removed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    assert finished_shards(str(tmp_path), ["k"]) == {}
    assert list(tmp_path.iterdir()) == []
