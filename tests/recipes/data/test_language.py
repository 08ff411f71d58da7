"""Languages of documents by a model of fastText, and files that are no such models."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.recipes.data.steps import run
from tradewind.recipes.data import FilterConfig, consolidate, identify_language, normalize
from tradewind.steps import ExecutorStep

WORDS = {"en": "the ship sails with an evening tide", "de": "das Schiff segelt mit der Flut über", "fr": "le navire"}
TEXTS = {
    "english": "das </s> the ship\nsails with an evening tide",  # the mark ends no text
    "german": "das Schiff segelt über die Flut __label__en",
    "short": "an über",
    "unknown": "Ωμέγα",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model of three languages, whole and quantized."""
    import fasttext

    folder, draw = tmp_path_factory.mktemp("models"), random.Random(1)
    lines = [f"__label__{label} {' '.join(draw.choices(words.split(), k=8))}\n" for label, words in WORDS.items()] * 300
    (folder / "lines.txt").write_text("".join(lines))
    options = {"dim": 4, "epoch": 20, "minn": 2, "maxn": 3, "bucket": 400, "thread": 1, "verbose": 0}
    model = fasttext.train_supervised(str(folder / "lines.txt"), **options)
    model.save_model(str(folder / "model.bin"))
    model.quantize()
    model.save_model(str(folder / "model.ftz"))
    return folder


def documents(folder: Path, texts: dict[str, str] = TEXTS) -> ExecutorStep:
    folder.mkdir()
    rows = [{"id": own, "text": text} for own, text in texts.items()]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return normalize("documents", str(folder), shards=2)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(folder.glob("*.parquet")) for row in parquet.read_table(file).to_pylist()]


@pytest.mark.parametrize("name", ["model.bin", "model.ftz"])
def test_languages_are_found_and_kept_by_threshold(name: str, trained: Path, tmp_path: Path) -> None:
    pages = documents(tmp_path / "in")
    found = identify_language("languages", pages, str(trained / name), languages=["en", "fr"], threshold=0.8)
    own = {row["id"]: row["source_id"] for row in rows_of(run(pages, tmp_path))}
    attributes = {own[row["id"]]: row["attributes"] for row in rows_of(run(found, tmp_path))}
    labels = {name: each["language"] and each["language"]["label"] for name, each in attributes.items()}
    assert (labels["english"], labels["german"]) == ("en", "de")
    assert {name for name, each in attributes.items() if not each["other_language"]} == {"english"}
    kept = consolidate("kept", pages, [FilterConfig("remove_doc", found, "other_language")])
    assert [row["text"] for row in rows_of(run(kept, tmp_path))] == [TEXTS["english"]]
