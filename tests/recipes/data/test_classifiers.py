"""Classifiers of texts: what they learn, the same bytes each time, their scores, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.recipes.data.steps import run
from tradewind.recipes.data import FilterConfig, consolidate, normalize, score_documents, train_classifier
from tradewind.steps import ExecutorStep, resolve

KINDS = ("fasttext", "hashed_logistic")
SMALL: dict[str, dict[str, Any]] = {"fasttext": {"dim": 8, "epoch": 30}, "hashed_logistic": {"features": 1 << 12}}
WORDS = {
    "sea": "ship tide harbour sail wind captain rope deck gull coast",
    "shop": "buy cheap click offer free sale basket win bonus now",
}


def pages(folder: Path, topic: str, count: int = 120, start: int = 0) -> Path:
    """Write documents about a topic, of which half the words are those of all."""
    draw, words = random.Random(f"{topic} {start}"), WORDS[topic].split() + ["the", "of", "and", "to", "a"]
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"id": f"{topic}-{start + at}", "text": " ".join(draw.choices(words, k=30))} for at in range(count)]
    (folder / f"{topic}-{start}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def classifier(folder: Path, kind: str, **options: Any) -> ExecutorStep:
    sea, shop = (pages(folder / topic, topic) for topic in WORDS)
    return train_classifier("quality", str(sea), str(shop), kind=kind, arguments=SMALL[kind], **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_classifier_separates_topics_and_keeps_the_best(kind: str, tmp_path: Path) -> None:
    step = classifier(tmp_path, kind)
    for topic in WORDS:
        pages(tmp_path / "new", topic, 50, start=1000)
    documents = normalize("documents", str(tmp_path / "new"), shards=2)
    scores = score_documents("scores", documents, step)
    best = FilterConfig("classify", scores, "quality", "positive", keep_fraction=0.3)
    kept = run(consolidate("best", documents, [best]), tmp_path / "out")
    rows = [row for file in kept.glob("*.parquet") for row in parquet.read_table(file).to_pylist()]
    assert len(rows) == 30
    assert {row["source_id"].split("-")[0] for row in rows} == {"sea"}
    stats = json.loads((run(step, tmp_path / "out") / "stats.json").read_text())
    assert stats["held_out"]["labels"]["positive"]["auc"] > 0.99


@pytest.mark.parametrize("kind", KINDS)
def test_training_and_scores_are_the_same_bytes(kind: str, tmp_path: Path) -> None:
    step = classifier(tmp_path, kind)
    documents = normalize("documents", str(tmp_path / "sea"), shards=2)
    scores = score_documents("scores", documents, step)
    first, second = ([contents(run(each, tmp_path / to)) for each in (step, scores)] for to in ("one", "two"))
    assert first == second
    assert len(first[0]) == 3


def by_length(texts: list[str]) -> list[dict[str, float]]:
    return [{"words": float(len(text.split())), "even": len(text) % 2.0} for text in texts]


def test_function_of_a_user_scores_documents(tmp_path: Path) -> None:
    documents = normalize("documents", str(pages(tmp_path / "sea", "sea", 3)), shards=4)
    scores = score_documents("scores", documents, by_length, attribute="size")
    kept = consolidate("kept", documents, [FilterConfig("classify", scores, "size", "words", threshold=30)])
    run(kept, tmp_path)
    version = resolve([scores], "/p").of(scores).hash
    assert version != resolve([score_documents("scores", documents, wrong_length)], "/p").steps[-1].hash


def wrong_length(texts: list[str]) -> list[float]:
    return [0.0] * (len(texts) + 1)
