"""A step whose pipeline groups words, and waits at the points that files below its folder name."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tradewind.datasets import Dataset, ShardInfo

SHARDS = 6
WORDS = 4
"""Shards after the shuffle; a point is named ``6-3`` or ``4-2``, or ``end`` before the commit."""


@dataclass(frozen=True)
class Config:
    root: str
    output_path: Any


def make_inputs(root: Path) -> None:
    for name in ("in", "begun"):
        (root / name).mkdir()
    for shard in range(SHARDS):
        rows = [json.dumps({"id": f"{shard}-{row}", "word": f"w{row % 9}"}) for row in range(20)]
        (root / "in" / f"{shard}.jsonl").write_text("\n".join(rows) + "\n")


def hold(root: Path, point: str) -> None:
    (root / "begun" / f"{point}-{os.getpid()}").touch()
    while (root / f"held-{point}").exists():
        time.sleep(0.05)


def processes(root: Path, point: str) -> list[int]:
    """Return the processes that have come to a point."""
    return [int(path.name.rpartition("-")[2]) for path in (root / "begun").glob(f"{point}-*")]


def times(root: Path) -> Counter[str]:
    """Count how often each point was reached."""
    return Counter(path.name.rpartition("-")[0] for path in (root / "begun").iterdir())


def with_ids(word: str, rows: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return {"word": word, "ids": [row["id"] for row in rows]}


def words(config: Config) -> Dataset[str]:
    root = Path(config.root)

    def held(rows: Iterator[Any], info: ShardInfo) -> Iterator[Any]:
        hold(root, f"{info.total_shards}-{info.shard_idx}")
        yield from rows

    rows = Dataset.from_files(f"{root}/in/*.jsonl").load_jsonl().map_shard(held)
    grouped = rows.group_by(lambda row: row["word"], reducer=with_ids, num_output_shards=WORDS)
    return grouped.map_shard(held).write_jsonl(f"{config.output_path}/{{shard}}.jsonl.gz")


def hold_end(config: Config, _: Any) -> None:
    hold(Path(config.root), "end")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.jsonl.gz")}
