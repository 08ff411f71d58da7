"""Documents of Dolma's form, there and back."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.recipes.data.steps import check_snapshot, run
from tradewind.datasets import PipelineError
from tradewind.recipes.data import from_dolma, normalize, to_dolma

INPUTS = Path(__file__).parent / "inputs"
DOLMA: list[dict[str, Any]] = [
    {"id": "b", "text": "One.", "source": "wiki", "metadata": {"length": 4, "deep": {"list": [1, None, "ä"]}}},
    {"id": "a", "text": "Two.", "source": "wiki", "added": "2026-01-01", "metadata": {}},
    {"id": "c", "text": "Three.", "source": "web"},
    {"id": "d", "text": "Four.", "source": "web", "added": "x", "metadata": {"added": "y"}},
]


def write_dolma(folder: Path) -> Path:
    for at, rows in enumerate((DOLMA[:2], DOLMA[2:])):
        (folder / f"documents/{at}").mkdir(parents=True)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"documents/{at}/part.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "attributes").mkdir()
    (folder / "attributes/part.jsonl.gz").write_bytes(gzip.compress(b'{"id": "a"}\n'))
    return folder


def rows_of(folder: Path) -> list[dict[str, Any]]:
    lines = [line for file in folder.rglob("*.jsonl.gz") for line in gzip.decompress(file.read_bytes()).splitlines()]
    return sorted(map(json.loads, lines), key=lambda row: str(row["id"]))


def test_documents_of_dolma_survive_the_way_and_back(tmp_path: Path) -> None:
    there = from_dolma("there", write_dolma(tmp_path / "dolma"), shards=3)
    back = run(to_dolma("back", there), tmp_path)
    expected = [{"metadata": {}, **row} for row in DOLMA]
    expected[1] = {"id": "a", "text": "Two.", "source": "wiki", "metadata": {"added": "2026-01-01"}}
    expected[3] = {**DOLMA[3], "metadata": {"added": "x", "metadata": {"added": "y"}}}
    del expected[3]["added"]
    assert rows_of(back) == sorted(expected, key=lambda row: str(row["id"]))
    assert sorted(file.name for file in (back / "documents").iterdir())[0] == "part-00000-of-00003.jsonl.gz"


def test_set_becomes_dolma_as_in_the_snapshot(tmp_path: Path) -> None:
    check_snapshot("dolma", run(to_dolma("dolma", normalize("docs", INPUTS, shards=1)), tmp_path), INPUTS)


def test_sets_of_documents_merge_to_one_with_their_origins(tmp_path: Path) -> None:
    parts = [normalize(name, INPUTS / f"{name}.jsonl", source=name) for name in ("web", "wiki")]
    merged = run(normalize("merged", parts, shards=1), tmp_path)
    rows = parquet.read_table(merged / "part-00000-of-00001.parquet").to_pylist()
    assert [(row["source"], row["source_id"]) for row in rows] == [
        ("web", "17"), ("web", "19"), ("web", "18"), ("wiki", "w1"),
    ]  # fmt: skip
    assert json.loads(rows[3]["metadata"]) == {"url": "https://example.com/winds", "words": 12}


def test_folder_that_is_not_of_dolma_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="documents: there is nothing at .*/documents"):
        run(from_dolma("there", tmp_path), tmp_path)
    with pytest.raises(ValueError, match="Step 'there': dolma=7: give a step"):
        from_dolma("there", 7)


def test_damaged_metadata_are_refused(tmp_path: Path) -> None:
    folder = run(normalize("docs", INPUTS, shards=1), tmp_path)
    file = folder / "part-00000-of-00001.parquet"
    table = parquet.read_table(file)
    parquet.write_table(table.set_column(4, "metadata", [["{"] * table.num_rows]), file)
    with pytest.raises(PipelineError, match="The metadata of '17' is no JSON"):
        run(to_dolma("dolma", folder), tmp_path)
