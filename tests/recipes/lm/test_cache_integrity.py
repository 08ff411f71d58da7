"""Damage of token caches, which Levanter would read as zeros or find only on the slice."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.datasets.caches import write_cache
from tradewind.recipes.lm.cache_integrity import LEDGER, check_cache
from tradewind.recipes.lm.checks import check_shares
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage

TOKENS = "input_ids/data/c/0"
pytestmark = pytest.mark.slow  # Levanter's imports take seconds


def change_ledger(cache: Path, **values: Any) -> None:
    ledger = json.loads((cache / LEDGER).read_text())
    (cache / LEDGER).write_text(json.dumps(ledger | values))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no tokens": (lambda cache: (cache / TOKENS).unlink(), f"{TOKENS} is missing"),
    "empty tokens": (lambda cache: (cache / TOKENS).write_bytes(b""), f"{TOKENS} is empty"),
    "no offsets": (lambda cache: (cache / "input_ids/offsets/c/0").unlink(), "input_ids/offsets/c/0 is missing"),
    "cut offsets": (lambda cache: cut(cache / "input_ids/offsets/c/0"), "input_ids cannot be read"),
    "no metadata": (lambda cache: (cache / "input_ids/data/zarr.json").unlink(), "input_ids/data/zarr.json is missing"),
    "cut metadata": (lambda cache: cut(cache / "input_ids/data/zarr.json"), "input_ids/data/zarr.json is invalid"),
    "no field": (lambda cache: shutil.rmtree(cache / "input_ids"), "input_ids/offsets/zarr.json is missing"),
    "cut ledger": (lambda cache: cut(cache / LEDGER), f"its {LEDGER} is invalid"),
    "deep ledger": (lambda cache: (cache / LEDGER).write_text("[" * 100_000), f"its {LEDGER} is invalid"),
    "cut tokens": (lambda cache: cut(cache / TOKENS), "input_ids/data cannot be read"),
    "large ledger": (lambda cache: os.truncate(cache / LEDGER, 3 << 30), f"its {LEDGER} is no file of at most 16,777"),
    "no shards": (lambda cache: change_ledger(cache, layout="sharded", finished_shards=[]), f"its {LEDGER} is invalid"),
    "no counts": (lambda cache: change_ledger(cache, total_num_rows=None), f"its {LEDGER} is invalid"),
    "other rows": (lambda cache: change_ledger(cache, total_num_rows=5), f"has 4 rows, and {LEDGER} has 5"),
    "other tokens": (
        lambda cache: change_ledger(cache, field_counts={"input_ids": 65}),
        f"has 64 values, and {LEDGER} has 65",
    ),
    "more chunks": (
        lambda cache: change_ledger(cache, field_counts={"input_ids": 64, "other\x1b": 1}),
        "/offsets/zarr.json is missing",
    ),
    "field elsewhere": (
        lambda cache: change_ledger(cache, field_counts={"../whole/input_ids": 64}),
        f"its {LEDGER} is invalid",
    ),
    "field without text": (
        lambda cache: change_ledger(cache, field_counts={"\ud800": 64}),
        f"its {LEDGER} is invalid",
    ),
    "unfinished": (lambda cache: change_ledger(cache, is_finished=False), "there is no finished token cache at"),
    "no ledger": (lambda cache: (cache / LEDGER).unlink(), "there is no finished token cache at"),
}


def test_every_damage_of_a_cache_is_named(tmp_path: Path) -> None:
    whole = write_cache(tmp_path / "whole")
    check_cache(str(whole), 64)
    for number, (damage, sentence) in enumerate(DAMAGES.values()):
        cache = shutil.copytree(whole, tmp_path / str(number))
        damage(cache)
        with pytest.raises(ValueError, match=sentence.replace(".", r"\.")) as refusal:
            check_cache(str(cache), 64)
        assert str(cache) in str(refusal.value) and str(refusal.value).isprintable()


def test_cache_without_one_sequence_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 64 tokens, less than one sequence of 65"):
        check_cache(str(write_cache(tmp_path / "short")), 65)
    with pytest.raises(ValueError, match="is empty"):
        check_cache(str(write_cache(tmp_path / "empty", rows=0)))


def test_ledger_without_counts_and_masks_without_chunks_pass(tmp_path: Path) -> None:
    cache = write_cache(tmp_path / "cache")
    write_cache(tmp_path / "masks", field="assistant_masks")
    shutil.move(tmp_path / "masks/assistant_masks", cache)
    (cache / "assistant_masks/data/c/0").unlink()  # so TensorStore stores zeros alone
    change_ledger(cache, field_counts={})
    check_cache(str(cache), 64)
    (cache / TOKENS).unlink()
    with pytest.raises(ValueError, match=f"{TOKENS} is missing"):
        check_cache(str(cache), 64)


def test_leftover_shards_and_other_token_fields_are_told_apart(tmp_path: Path) -> None:
    cache = write_cache(tmp_path / "cache")
    write_cache(cache / "00000_part", rows=1)  # of which Levanter has made the cache
    change_ledger(cache, field_counts={})
    check_cache(str(cache), 64)
    other = write_cache(tmp_path / "other", field="tokens")
    check_cache(str(other), 64, tokens="tokens")
    (other / "tokens/data/c/0").unlink()
    with pytest.raises(ValueError, match="tokens/data/c/0 is missing"):
        check_cache(str(other), 64, tokens="tokens")


def test_cache_written_again_is_read_again(tmp_path: Path) -> None:
    for rows in (4, 7):
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        check_cache(str(write_cache(tmp_path / "cache", rows=rows)), 16 * rows)


def test_shards_are_checked_with_few_requests(cloud: LocalCloudStorage, tmp_path: Path) -> None:
    shard, count = write_cache(tmp_path / "shard"), 800
    files = {
        str(file.relative_to(shard)): file.read_bytes() for file in shard.rglob("input_ids/**/*") if file.is_file()
    }
    names = [f"part-{number:05d}" for number in range(count)]
    for name in names:
        for file, content in files.items():
            cloud.buckets.put("bucket", f"cache/{name}/{file}", content, {}, {})
    ledger = {
        "total_num_rows": 4 * count,
        "is_finished": True,
        "layout": "sharded",
        "shard_rows": dict.fromkeys(names, 4),
        "finished_shards": names,
        "field_counts": {"input_ids": 64 * count},
        "field_counts_by_shard": dict.fromkeys(names, {"input_ids": 64}),
    }
    cloud.buckets.put("bucket", f"cache/{LEDGER}", json.dumps(ledger).encode(), {}, {})
    cloud.requests.clear()
    check_cache("gs://bucket/cache", 64 * count)
    assert sum(cloud.requests.values()) <= 12  # four pages of the listing
    cloud.buckets.delete("bucket", f"cache/{names[-1]}/{TOKENS}", {})
    with pytest.raises(ValueError, match=f"{names[-1]}/{TOKENS} is missing"):
        check_cache("gs://bucket/cache")


@pytest.mark.parametrize(
    ("weights", "block", "sentence"),
    [
        ({"web": 1.0, "rare": 1e-4}, 2048, "the weight of 'rare' is 0.0001 of 1.0001, so a block of 2,048 sequences"),
        ({"web": 1.0, "rare": 1 / 2047}, 2048, ""),
        ({"web": 1.0, "rare": 0.0}, 2048, ""),
        ({"web": 1.0, "code": 1.0, "books": 1.0}, 2, "the weight of 'code' is 1 of 3"),
    ],
)
def test_weight_too_small_for_a_block_is_refused(weights: dict[str, float], block: int, sentence: str) -> None:
    if not sentence:
        return check_shares(weights, block)
    with pytest.raises(ValueError, match=sentence):
        check_shares(weights, block)
    return None
