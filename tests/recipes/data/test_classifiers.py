"""Classifiers of texts: what they learn, the same bytes each time, their scores, and what is refused."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import fasttext
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tests.recipes.data.steps import check_snapshot, run
from tradewind.datasets import PipelineError, create_backend
from tradewind.recipes.data import (
    ClassifierData,
    FilterConfig,
    consolidate,
    normalize,
    score_documents,
    train_classifier,
)
from tradewind.recipes.data.quality.classifier_models import description
from tradewind.recipes.data.quality.fasttext_models import plain_line
from tradewind.recipes.data.quality.hashed_models import HashedModel
from tradewind.recipes.data.quality.training_samples import is_held_out, sampled_texts
from tradewind.steps import ExecutorStep, resolve

INPUTS = Path(__file__).parent / "inputs"
needs_training = pytest.mark.skipif(not hasattr(fasttext, "train_supervised"), reason="fasttext-predict cannot train")
KINDS = (pytest.param("fasttext", marks=needs_training), "hashed_logistic")
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_training_and_scores_are_the_same_bytes(kind: str, tmp_path: Path) -> None:
    step = classifier(tmp_path, kind)
    documents = normalize("documents", str(tmp_path / "sea"), shards=2)
    scores = score_documents("scores", documents, step)
    first, second = ([contents(run(each, tmp_path / to)) for each in (step, scores)] for to in ("one", "two"))
    assert first == second
    assert len(first[0]) == 3


def trained(folder: Path, step: ExecutorStep) -> dict[str, Any]:
    """Return the statistics of a training."""
    stats: dict[str, Any] = json.loads((run(step, folder) / "stats.json").read_text())
    return stats


def hashed_model(folder: Path, weights: Any = None, content: bytes | None = None, **changes: Any) -> Path:
    """Write a classifier of three labels without a training."""
    folder.mkdir()
    about = description("hashed_logistic", "abc", {"features": 8, "wordNgrams": 2, "epoch": 1, "alpha": 1.0})
    (folder / "classifier.json").write_text(json.dumps({**about, **changes}))
    given = np.arange(27).reshape(3, 9) % 7 - 3.0 if weights is None else weights
    np.save(folder / "model.npy", given, allow_pickle=True)
    if content is not None:
        (folder / "model.npy").write_bytes(content)
    return folder


def test_scores_are_as_in_the_snapshot(tmp_path: Path) -> None:
    documents = normalize("documents", INPUTS, shards=2)
    scores = score_documents("scores", documents, str(hashed_model(tmp_path / "model")))
    check_snapshot("scores", run(scores, tmp_path), INPUTS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_labels_and_marks_in_texts_are_words(kind: str, tmp_path: Path) -> None:
    """Each document of the sea begins with what would end its line, and be a label of the other topic or a new one."""
    sea, shop = (pages(tmp_path / topic, topic) for topic in WORDS)
    marks = "__label__other </s>\n__label__negative\t____label____ \ud800 \x00 "
    rows = [json.loads(line) for line in (sea / "sea-0.jsonl").read_text().splitlines()]
    lines = [json.dumps({**row, "text": marks + row["text"]}) + "\n" for row in rows]
    (sea / "sea-0.jsonl").write_text("".join(lines))
    step = train_classifier("quality", str(sea), str(shop), kind=kind, arguments=SMALL[kind])
    stats = trained(tmp_path, step)
    assert stats["labels"] == ["negative", "positive"]
    assert [data["train"] + data["held_out"] for data in stats["datasets"]] == [120, 120]
    assert stats["held_out"]["accuracy"] == 1.0


@given(st.lists(st.sampled_from(["__label__", "label", "_", "__", "</s>", "<", "/s>", " ", "\n", "\ud800", "é"])))
def test_line_of_a_text_has_neither_labels_nor_ends(parts: list[str]) -> None:
    line = plain_line("".join(parts))
    assert "\n" not in line
    assert not [word for word in line.split() if word == "</s>" or word.startswith("__label__")]
    line.encode()


@pytest.mark.slow
def test_files_do_not_change_a_training_but_its_seed_does(tmp_path: Path) -> None:
    step = classifier(tmp_path, "hashed_logistic")
    whole = contents(run(step, tmp_path / "one"))
    lines = (tmp_path / "sea" / "sea-0.jsonl").read_text().splitlines(keepends=True)
    for part in range(3):
        (tmp_path / "sea" / f"sea-{part}.jsonl").write_text("".join(lines[part::3]))
    assert contents(run(step, tmp_path / "two")) == whole
    other = contents(run(classifier(tmp_path / "other", "hashed_logistic", seed=1), tmp_path / "three"))
    assert other["model.npy"] != whole["model.npy"]


@pytest.mark.slow
def test_sample_is_bounded_and_held_out_texts_are_apart(tmp_path: Path) -> None:
    sea = pages(tmp_path / "sea", "sea", 300)
    rows = (sea / "sea-0.jsonl").read_text()
    (sea / "again.jsonl").write_text(rows)  # equal texts
    data = [
        ClassifierData(str(sea), "sea", max_sample_size=99),
        ClassifierData(str(pages(tmp_path / "shop", "shop", 300)), "shop", sampling_rate=0.5),
        ClassifierData(str(pages(tmp_path / "both", "sea", 60, 500)), "both"),
    ]
    step = train_classifier("topics", datasets=data, kind="hashed_logistic", arguments=SMALL["hashed_logistic"])
    sizes = [each["train"] + each["held_out"] for each in trained(tmp_path, step)["datasets"]]
    assert sizes[0] == 99 and 110 < sizes[1] < 190 and sizes[2] == 60
    backend = create_backend("sync", scratch=str(tmp_path / "scratch"))
    ordered, other = (backend.execute(sampled_texts(data[2:], seed, str(tmp_path))) for seed in (0, 1))
    assert [row["text"] for row in ordered] != [row["text"] for row in other], "the seed decides the order"
    ordered = backend.execute(sampled_texts(data[:1], 0, str(tmp_path)))
    sides: dict[str, set[bool]] = {}
    for row in ordered:
        sides.setdefault(row["text"], set()).add(is_held_out(row["order"], 0.5))
    assert {len(each) for each in sides.values()} == {1}
    assert {side for each in sides.values() for side in each} == {True, False}
    assert [row["order"] for row in ordered] == sorted(row["order"] for row in ordered)


def test_version_counts_all_that_decides_a_model() -> None:
    def version(positive: Any = "a", negative: Any = "b", **changes: Any) -> str:
        step = train_classifier("c", positive, negative, **changes)
        return resolve([step], "/p").of(step).hash

    data = [ClassifierData("b", "negative")]
    others: list[dict[str, Any]] = [
        {"positive": "c"}, {"positive": ["a", "c"]}, {"kind": "hashed_logistic"}, {"seed": 1},
        {"validation_fraction": 0.2}, {"arguments": {"lr": 0.2}}, {"datasets": [ClassifierData("c", "c")]},
        {"datasets": [ClassifierData("c", "c", 0.5)]}, {"datasets": [ClassifierData("c", "c", 1.0, 9)]},
    ]  # fmt: skip
    assert len({version(**each) for each in [{}, *others]}) == 10
    assert version() == version(arguments={"lr": 0.1}) == version(negative=None, datasets=data)


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"positive": "a"}, "datasets has 1 labels: give positive and negative documents"),
    ({"datasets": [ClassifierData("a", "x"), ClassifierData("b", "x")]}, "datasets has 1 labels"),
    ({"positive": 3, "negative": "b"}, "positive=3: give a step, a path"),
    ({"positive": "", "negative": "b"}, "positive='': give a step, a path"),
    ({"positive": "a", "negative": "b", "datasets": ["c"]}, "datasets=['c']: give a list of ClassifierData"),
    ({"kind": "bert"}, "kind='bert': give one of fasttext, hashed_logistic"),
    ({"arguments": {"epochs": 3}}, "arguments has 'epochs': did you mean 'epoch'?"),
    ({"arguments": {"thread": 4}}, "arguments has 'thread': there are lr, dim"),
    ({"arguments": {"dim": 1 << 40}}, "arguments['dim']=1099511627776: give a whole number from 1 to 10000"),
    ({"arguments": {"loss": "ns"}}, "arguments['loss']='ns': give one of softmax, hs, ova"),
    ({"arguments": [("lr", 1)]}, "arguments=[('lr', 1)]: give a mapping"),
    ({"kind": "hashed_logistic", "arguments": {"lr": 0.1}}, "arguments has 'lr': there are features"),
    ({"seed": -1}, "seed=-1: give a whole number from 0 to 2147483647"),
    ({"validation_fraction": 1.0}, "validation_fraction=1.0: give a number of at least 0 and below 1"),
]


@pytest.mark.parametrize(("given", "message"), ARGUMENTS)
def test_impossible_trainings_are_refused(given: dict[str, Any], message: str) -> None:
    documents = {} if "positive" in given or "datasets" in given else {"positive": "a", "negative": "b"}
    with pytest.raises(ValueError, match=re.escape(f"Step 'c': {message}")):
        train_classifier("c", **documents, **given)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"label": "high quality"}, "label='high quality': give a label of letters"),
        ({"label": "__label__é"}, "label='__label__é'"),
        ({"label": ""}, "label=''"),
        ({"sampling_rate": 0}, "sampling_rate=0: give a number above 0 and at most 1"),
        ({"sampling_rate": 1.5}, "sampling_rate=1.5"),
        ({"max_sample_size": 0}, "max_sample_size=0"),
        ({"documents": None}, "documents=None"),
    ],
)
def test_impossible_data_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ClassifierData(**{"documents": "a", "label": "x", **fields})


UNUSABLE: dict[str, tuple[str, dict[str, Any], str]] = {
    "few": ('{"text": "a ship"}\n' * 9, {}, "label 'positive' has 9 documents to train on and 0 held out, from .*sea"),
    "one text": ('{"text": "a ship"}\n' * 50, {}, r"label 'positive' has \d+ documents to train on and \d+ held out"),
    "blank": ('{"text": " \\n"}\n' * 50, {}, "label 'positive' has 0 documents to train on"),
    "no column": ('{"body": "a"}\n', {}, "no column 'text'.*sea-0.jsonl row 1"),
    "no text": ('{"text": null}\n', {}, "The text is None: give documents whose text is a text.*sea-0.jsonl row 1"),
    "twice": ("", {"negative": "sea"}, r"datasets\[1\].documents: .*sea-0.jsonl is also .* of the label 'positive'"),
    "absent": ("", {"negative": "nothing"}, r"datasets\[1\].documents: .*nothing"),
    "numbers": ("", {"arguments": {"lr": 1e9}}, "fastText cannot train: Encountered NaN. Give a smaller lr"),
}


@needs_training
@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_documents_are_refused(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, changes, message = UNUSABLE[case]
    for topic in WORDS:
        pages(tmp_path / topic, topic)
    if content:
        (tmp_path / "sea" / "sea-0.jsonl").write_text(content)
    negative = str(tmp_path / changes.get("negative", "shop"))
    step = train_classifier("quality", str(tmp_path / "sea"), negative, arguments=changes.get("arguments"))
    with pytest.raises((PipelineError, ValueError), match=message):
        run(step, tmp_path)
    assert not [*tmp_path.glob("quality-*/[!.]*")], "neither a model nor statistics"
    assert "processed again" not in capsys.readouterr().out


def test_fasttext_that_only_predicts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fasttext, "train_supervised", raising=False)
    with pytest.raises(ValueError, match="kind='fasttext': the installed fasttext-predict cannot train, .* give kind="):
        run(train_classifier("quality", str(tmp_path), str(tmp_path)), tmp_path)


def by_length(texts: list[str]) -> list[dict[str, float]]:
    return [{"words": float(len(text.split())), "even": len(text) % 2.0} for text in texts]


def test_function_of_a_user_scores_documents(tmp_path: Path) -> None:
    documents = normalize("documents", str(pages(tmp_path / "sea", "sea", 3)), shards=4)
    scores = score_documents("scores", documents, by_length, attribute="size")
    kept = consolidate("kept", documents, [FilterConfig("classify", scores, "size", "words", threshold=30)])
    run(kept, tmp_path)
    version = resolve([scores], "/p").of(scores).hash
    assert version != resolve([score_documents("scores", documents, wrong_length)], "/p").steps[-1].hash


def test_each_shard_loads_the_model_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    load = HashedModel.__init__
    monkeypatch.setattr(HashedModel, "__init__", lambda *given: (loads.append(given[1]), load(*given))[1])
    documents = normalize("documents", str(pages(tmp_path / "sea", "sea", 1200)), shards=2)
    run(score_documents("scores", documents, str(hashed_model(tmp_path / "model"))), tmp_path)
    assert len(loads) == 2


HUGE = b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (3, 99999999999)}".ljust(118)
BAD_CLASSIFIERS: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"kind": "bert"}, "classifier: .*classifier.json describes no classifier: KeyError 'bert'"),
    "labels": ({"labels": ["a"]}, "its labels are no sorted list of different texts"),
    "argument": ({"arguments": {"features": 1 << 40}}, "features=1099511627776: give a whole number"),
    "missing": ({"arguments": {"features": 8}}, "describes no classifier: KeyError 'wordNgrams'"),
    "shape": ({"weights": np.zeros((3, 8))}, r"model.npy has float64 of shape \(3, 8\), and not float64 of \(3, 9\)"),
    "pickle": ({"weights": np.array([[{}]])}, "model.npy is no array: Array can't be memory-mapped: Python objects"),
    "cut": ({"content": b""}, "model.npy is no array: "),
    "huge": ({"content": HUGE}, "model.npy is no array: "),
}


@pytest.mark.parametrize("case", BAD_CLASSIFIERS)
def test_damaged_classifiers_are_refused(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes, message = BAD_CLASSIFIERS[case]
    documents = normalize("documents", str(pages(tmp_path / "sea", "sea", 3)))
    scores = score_documents("scores", documents, str(hashed_model(tmp_path / "model", **changes)))
    with pytest.raises((PipelineError, ValueError), match=message):
        run(scores, tmp_path)
    assert "processed again" not in capsys.readouterr().out


def test_function_that_loses_texts_is_refused(tmp_path: Path) -> None:
    documents = normalize("documents", str(pages(tmp_path / "sea", "sea", 3)))
    with pytest.raises(PipelineError, match="wrong_length returned .* for 3 texts: return a list with the scores of"):
        run(score_documents("scores", documents, wrong_length), tmp_path)


def wrong_length(texts: list[str]) -> list[float]:
    return [0.0] * (len(texts) + 1)
