"""The progress file of a pipeline, as a page reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tradewind.datasets import stored_progress
from tradewind.datasets.stored_progress import (
    MAX_SHARDS,
    MAX_STAGES,
    MAX_TEXT,
    NamedCount,
    progress_path,
    read_progress,
)
from tradewind.storage.files import write_text

STAGE = {"stage": 1, "name": "read", "shards": 9, "done": 4, "stragglers": ["shard 3 (99 s)"], "counters": {"kept": 2}}


def write(output: Path, value: Any) -> None:
    write_text(progress_path(str(output)), value if isinstance(value, str) else json.dumps(value))


def test_output_without_pipeline_has_no_progress(tmp_path: Path) -> None:
    assert read_progress(str(tmp_path)) is None


@pytest.mark.parametrize(
    "value",
    [
        "", "[", "[]", {"stages": []}, {"stages": {}, "total_stages": 1}, {"stages": [7], "total_stages": 1},
        {"stages": [{**STAGE, "done": -1}], "total_stages": 1}, {"stages": [{"stage": 1}], "total_stages": 1},
        {"stages": [{**STAGE, "failures": [{"shard": "x"}]}], "total_stages": 1}, "x" * (2 << 20),
    ],
)  # fmt: skip
def test_unreadable_progress_is_named(tmp_path: Path, value: Any) -> None:
    write(tmp_path, value)
    found = read_progress(str(tmp_path))
    assert found is not None and found.stages == () and "progress.json cannot be read, because" in (found.note or "")


def test_progress_is_bounded_and_unknown_fields_ignored(tmp_path: Path) -> None:
    long = "x" * 3000
    failures = [{"shard": at, "message": long} for at in range(MAX_SHARDS + 9)]
    stages = [{**STAGE, "later": 1}] * (MAX_STAGES + 5)
    write(tmp_path, {"stages": [{**STAGE, "name": long, "failures": failures}, *stages], "total_stages": 500})
    found = read_progress(str(tmp_path))
    assert found is not None and len(found.stages) == MAX_STAGES and found.total_stages == 500
    first, second = found.stages[:2]
    assert len(first.failures) == MAX_SHARDS and len(first.failures[0].message) == len(first.name) == MAX_TEXT + 1
    assert (second.done, second.stragglers, second.counters) == (4, ("shard 3 (99 s)",), (NamedCount("kept", 2),))


def test_shards_with_rejected_rows_come_from_manifests(tmp_path: Path) -> None:
    write(tmp_path, {"stages": [{**STAGE, "rejected": 3}], "total_stages": 1})
    shards = [{"shard": at, "path": f"/o/{at}", "rejected": at, "rejection": "KeyError: 'a'"} for at in range(3)]
    write_text(f"{tmp_path}/.dataset/00-{'a' * 16}.json", json.dumps(shards))
    write_text(f"{tmp_path}/.dataset/01-{'b' * 16}.json", "[")
    write_text(f"{tmp_path}/.dataset/02-{'b' * 16}.json", '[{"shard": []}]')
    found = read_progress(str(tmp_path))
    assert found is not None and [(each.shard, each.rejected) for each in found.rejected] == [(2, 2), (1, 1)]
    assert found.rejected[0].rejection == "KeyError: 'a'" and found.note is None


def test_long_manifests_are_read_within_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"stages": [{**STAGE, "rejected": 3}], "total_stages": 1})
    shards = json.dumps([{"shard": 1, "path": "/o/1", "rejected": 1}, {"odd": 1}, 7])
    for number in range(3):
        write_text(f"{tmp_path}/.dataset/{number:02}-{'a' * 16}.json", shards)
    monkeypatch.setattr(stored_progress, "_MAX_MANIFEST_BYTES", 2 * len(shards))
    found = read_progress(str(tmp_path))
    assert found is not None and [each.stage for each in found.rejected] == [1, 2]
    assert found.note is not None and "known of 2 of 3 stages" in found.note
