"""Perplexity and bits per byte of named sets: numbers, intervals, steps, and early refusals; no model is loaded."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.datasets.caches import write_cache
from tests.serving.exports import tiny_export
from tradewind import lazy
from tradewind.evaluation import token_sets
from tradewind.evaluation.files import read_scores
from tradewind.evaluation.log_probs import (
    LogProbsConfig,
    _kept,
    _record,
    _write_set,
    evaluate_log_probs,
    measure_log_probs,
    summary,
    task_results,
)
from tradewind.evaluation.perplexity import by_document, sequences_of
from tradewind.evaluation.probextraction import evaluate_extraction
from tradewind.evaluation.results import write_results
from tradewind.evaluation.scored_model import ModelSource
from tradewind.evaluation.scoring import check_finite, check_inputs
from tradewind.evaluation.statistics import ratio_interval
from tradewind.evaluation.token_sets import TokenSet, check_set, read_set, unique
from tradewind.evaluation.visualize import visualize_log_probs
from tradewind.recipes.steps import tokenize
from tradewind.steps import ExecutorStep, TpuSlice, resolve

TOKENS = tokenize("tokens", "gs://b/clean", "gs://b/tokenizer")
SETS = {"wiki": TOKENS, "paloma/c4_en": "gs://b/c4"}


def version(step: ExecutorStep) -> str:
    return resolve([step], "gs://b").of(step).hash


def decode(tokens: list[int], skip_special_tokens: bool) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def test_interval_of_ratio_is_that_of_resampled_documents() -> None:
    random = np.random.default_rng(1)
    wholes = random.integers(20, 400, 300).astype(float)
    parts = wholes * random.gamma(8, 0.1, 300)
    found = ratio_interval(parts.tolist(), wholes.tolist())
    drawn = random.integers(0, 300, (4000, 300))
    low, high = np.quantile(parts[drawn].sum(axis=1) / wholes[drawn].sum(axis=1), [0.025, 0.975])
    assert found.value == pytest.approx(parts.sum() / wholes.sum())
    assert (found.low, found.high) == (pytest.approx(low, rel=0.01), pytest.approx(high, rel=0.01))
    assert (ratio_interval([2.0], [4.0]).low, ratio_interval([2.0], [4.0]).value) == (None, 0.5)
    with pytest.raises(ValueError, match="all documents are empty"):
        ratio_interval([0.0], [0.0])


def test_tokens_are_cut_into_sequences_of_segments() -> None:
    sequences, segments = sequences_of(np.array([5, 0, 6, 7, 0, 8]), 4, end_of_text=0)
    assert sequences.tolist() == [[5, 0, 6, 7], [0, 8, 0, 0]]
    assert segments.tolist() == [[0, 0, 1, 1], [0, 1, 1, 2]]
    assert sequences_of(np.array([5, 0, 6]), 3, None)[1].tolist() == [[0, 0, 0]]


def test_numbers_are_sums_over_predicted_tokens_of_texts() -> None:
    # The first token of each sequence of 4 is not predicted, so text "b" has no predicted token.
    texts = TokenSet(np.arange(8), np.array([0, 4, 5]), ["a", "b", "c"])
    nats = np.array([9, 1, 2, 3, 9, 4, 5, 6], np.float32)
    found = by_document(texts, nats, np.array([90, 1, 1, 2, 90, 3, 3, 4]), 4, decode)
    assert found.texts == ["abcd", "fgh"]
    assert (found.names, found.tokens.tolist(), found.nats.tolist()) == (["a", "c"], [3, 3], [6.0, 15.0])
    numbers = found.numbers()
    assert (numbers["tokens"], numbers["bytes"], numbers["documents"], numbers["nats"]) == (6, 14, 2, 21.0)
    assert numbers["loss"] == pytest.approx(3.5) and numbers["perplexity"] == pytest.approx(math.exp(3.5))
    assert numbers["bits_per_byte"] == pytest.approx(21 / math.log(2) / 14)
    low, high = numbers["bits_per_byte_interval"]
    assert low < numbers["bits_per_byte"] < high
    unknown = by_document(texts, nats, None, 4, decode)
    assert unknown.numbers()["bits_per_byte"] is None and unknown.columns()["bytes"] == [None, None]
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers


def test_summary_escapes_names_and_leaves_unknown_numbers_out() -> None:
    texts = TokenSet(np.arange(4), np.array([0]), ["a"])
    numbers = by_document(texts, np.ones(4, np.float32), None, 4, decode).numbers()
    table = summary({"<b>|wiki": numbers})
    assert r"\<b>\|wiki |  |  | 1.0000 | 2.7183 | 3 |  | 1 |" in table and "no mean over sets" in table


@pytest.mark.parametrize("make", [evaluate_log_probs, visualize_log_probs, evaluate_extraction])
def test_version_counts_model_sets_and_settings_but_no_batches(make: Any) -> None:
    made = make("eval", "gs://b/train", SETS, weights="checkpoint")
    assert version(made) == version(make("eval", "gs://b/train", SETS, weights="checkpoint", per_device_batch_size=64))
    assert version(made) == version(
        make("eval", "gs://b/train", SETS, weights="checkpoint", resources=TpuSlice("v4-8"))
    )
    others = [
        make("eval", "gs://b/train", SETS),
        make("eval", "gs://b/other", SETS, weights="checkpoint"),
        make("eval", "hub:org/model@abcdef1", SETS, weights="checkpoint"),
        make("eval", "gs://b/train", {"wiki": TOKENS}, weights="checkpoint"),
        make("eval", "gs://b/train", {**SETS, "wiki": "gs://b/wiki"}, weights="checkpoint"),
        make("eval", "gs://b/train", SETS, weights="checkpoint", tokenizer_path="gs://b/tokenizer"),
        make("eval", "gs://b/train", SETS, weights="checkpoint", model_config=lazy("a:B", max_seq_len=8)),
        make("eval", "gs://b/train", SETS, weights="checkpoint", model_config="tiny"),
    ]
    assert len({version(step) for step in [made, *others]}) == len(others) + 1
    assert made.resumable == ("sets/**",)


def test_step_of_log_probs_has_a_stable_version() -> None:
    step = evaluate_log_probs("eval/log_probs", "gs://b/train", SETS, seq_len=64, max_sequences=10)
    assert resolve([step], "gs://b").of(step).hash == "3bb2f1"


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (evaluate_log_probs, {"sets": {}}, "sets={}: give a mapping of at most 1,000 names"),
        (evaluate_log_probs, {"sets": ["gs://b/c"]}, r"sets=\['gs://b/c'\]: give a mapping"),
        (evaluate_log_probs, {"sets": {"../a": "gs://b/c"}}, "sets=.*: give a mapping"),
        (evaluate_log_probs, {"sets": {"a//b": "gs://b/c"}}, "sets=.*: give a mapping"),
        (evaluate_log_probs, {"sets": {"a\n": "gs://b/c"}}, "sets=.*: give a mapping"),
        (evaluate_log_probs, {"sets": {"a": "gs://b/c", "a/b": "gs://b/d"}}, "sets has 'a' and names below it"),
        (evaluate_log_probs, {"sets": {"a": 3}}, r"sets\['a'\]=3: give a step"),
        (evaluate_log_probs, {"seq_len": 1}, "seq_len=1: give a whole number of at least 2"),
        (evaluate_log_probs, {"max_sequences": 0}, "max_sequences=0: give"),
        (evaluate_log_probs, {"weights": "ema"}, "weights='ema': give one of export, checkpoint, or None"),
        (evaluate_log_probs, {"model_config": "huge"}, "model_size='huge': give one of"),
        (evaluate_log_probs, {"batch_size": 3}, "no field of LogProbsConfig; did you mean per_device_batch_size"),
        (evaluate_log_probs, {"model": "hub:org/model@main"}, "model='hub:org/model@main': give hub:ORG/NAME@COMMIT"),
        (evaluate_log_probs, {"model": 3}, "model is 3, which is no input"),
        (visualize_log_probs, {"num_docs_per_dataset": 0}, "num_docs_per_dataset=0: give"),
        (visualize_log_probs, {"comparison_weights": "x"}, "comparison_weights='x': give one of"),
        (evaluate_extraction, {"stride": 0}, "stride=0: give a whole number of at least 1"),
        (evaluate_extraction, {"suffix_tokens": 0}, "suffix_tokens=0: give"),
    ],
)
def test_invalid_step_is_refused_with_its_name(make: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^Step 'eval': .*{message}"):
        make("eval", **{"model": "gs://b/train", "sets": {"a": "gs://b/c"}} | given)


def test_missing_sets_are_named(tmp_path: Path) -> None:
    for folder in ("train_only/train", "split", "odd"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("train_only/train", "split"):
        (tmp_path / folder / "shard_ledger.json").write_text("{}")
    (tmp_path / "odd/a.csv").write_text("text\n")
    for path, message in {
        "nothing": "there is nothing at",
        "odd": r"sets\['a'\]: ",
        "train_only": "has no validation split: name one, such as .*/train_only/train",
        "split": r"sets\['a'\]: .*shard_ledger.json",
    }.items():
        with pytest.raises(ValueError, match=message):
            check_set("a", f"{tmp_path}/{path}")


def test_documents_of_a_set_are_read_and_bad_rows_named(tmp_path: Path) -> None:
    def read(name: str, content: bytes, text_key: str = "text") -> list[tuple[str, str]]:
        (tmp_path / name).write_bytes(content)
        return list(token_sets._documents("sets['a']", f"{tmp_path}/{name}", text_key))

    assert read("book.txt", "naïve\n".encode()) == [("book.txt", "naïve\n")]
    assert read("a.jsonl", b'{"id": 7, "text": "x"}\n{"text": "y"}\n') == [("7", "x"), ("a.jsonl:2", "y")]
    for name, content, message in (
        ("b.jsonl", b'{"body": "x"}\n', "line 1 has no 'text': it has 'body'. Give text_key"),
        ("c.jsonl", b'{"text": 3}\n', "line 1 has a 'text' that is no text but 3"),
        ("s.jsonl", b'{"text": "\\ud800"}\n', "line 1 has half of a character"),
        ("t.jsonl", b'{"id": "\\ud800", "text": ""}\n', "line 1 has half of a character"),
        ("d.jsonl", b"[1]\n", r"line 1 has no 'text': it has \[1\]"),
        ("e.txt", b"\xff", "e.txt is no UTF-8 text"),
    ):
        with pytest.raises(ValueError, match=rf"sets\['a'\]: .*{message}"):
            read(name, content)
    assert unique(["a", "b", "a", "a (2)", "a"]) == ["a", "b", "a (2)", "a (2) (2)", "a (3)"]


@pytest.mark.slow
def test_tokens_of_a_cache_are_read_up_to_a_limit(tmp_path: Path) -> None:
    write_cache(tmp_path / "cache/validation", rows=3, tokens_per_row=4)
    whole, part = (read_set("a", f"{tmp_path}/cache", "text", None, most) for most in (None, 5))
    assert (whole.tokens.tolist(), whole.starts.tolist()) == ([1, 2, 3, 4] * 3, [0, 4, 8])
    assert (part.tokens.tolist(), part.starts.tolist(), part.names) == ([1, 2, 3, 4, 1], [0, 4], ["0", "1"])
    with pytest.raises(ValueError, match=r"sets\['a'\]: .* has no token to predict"):
        read_set("a", f"{tmp_path}/cache", "text", None, 1)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"tokens": 3}', '{"documents": 1, "tokens": -1, "loss": 1.0}'])
def test_cut_numbers_of_a_set_are_measured_again(tmp_path: Path, content: str) -> None:
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets/a.json").write_text(content)
    assert _kept(str(tmp_path), "a") is None
    whole = {"documents": 1, "tokens": 3, "loss": 1.5}
    (tmp_path / "sets/a.json").write_text(json.dumps(whole))
    assert _kept(str(tmp_path), "a") == whole


def test_sets_are_tasks_whose_texts_are_documents(tmp_path: Path) -> None:
    texts = TokenSet(np.arange(12), np.array([0, 4, 8]), ["a", "b", "empty"])
    for model, scale in (("one", 1.0), ("other", 1.5)):
        nats = np.array([0, 1, 2, 3, 0, 4, 5, 6, 0, 9, 9, 9]) * scale
        documents = by_document(texts, nats, np.array([0, 1, 1, 2, 0, 1, 1, 1, 0, 0, 0, 0]), 4, decode)
        numbers = documents.numbers() | {"seq_len": 4}
        _write_set(f"{tmp_path}/{model}/sets/wiki/en", documents, numbers)
        config = LogProbsConfig("gs://b/m", {"wiki/en": "gs://b/c"}, f"{tmp_path}/{model}")
        (result,) = task_results(config, {"wiki/en": numbers})
        record = write_results(config.output_path, _record("gs://b/m", {"wiki/en": numbers}, 0.0), [result])
        loss, mean = (record.tasks["wiki/en"].score(name) for name in ("loss", "loss_by_document"))
        assert loss is not None and (loss.value, loss.interval) == (numbers["loss"], "none")
        assert mean is not None and mean.value == pytest.approx(3.5 * scale) and mean.higher_is_better is False
        assert [sample.prompt for sample in result.samples] == ["abcd", "efgh"]
        bits = record.tasks["wiki/en"].score("bits_per_byte_by_document")
        assert bits is not None and bits.value is not None and bits.coverage == 1
    assert read_scores(f"{tmp_path}/one", ["wiki/en"])["wiki/en"].scores["loss_by_document"] == {"a": 2.0, "b": 5.0}


@pytest.mark.slow
def test_missing_model_is_named_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "export").mkdir()
    (tmp_path / "export/config.json").write_text("{}")
    for given, message in (
        ({"model_path": f"{tmp_path}/none"}, "model_path='.*none' is no model: give an export, a training"),
        ({"model_path": f"{tmp_path}/export", "weights": "checkpoint"}, "has no checkpoint: give weights='export'"),
        ({"model_path": f"{tmp_path}/export"}, "There is no tokenizer under model_path .*/export"),
        ({"model_path": f"{tmp_path}/export", "tokenizer_path": "/no"}, "There is no tokenizer under tokenizer_path"),
    ):
        fields: dict[str, Any] = {"model_path": str(tmp_path), "sets": {"a": f"{tmp_path}/a.txt"}} | given
        with pytest.raises(ValueError, match=message):
            measure_log_probs(LogProbsConfig(**fields, output_path=f"{tmp_path}/out"))
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="resources has 2 slices, and the model is loaded on the hosts of one"):
        check_inputs(LogProbsConfig(**fields, output_path="out"), 8, num_slices=2)


def test_model_without_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sets\['a'\]: the model's log probabilities are no numbers"):
        check_finite("a", np.array([1.0, np.nan]))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_model_with_code_of_its_own_is_refused(tmp_path: Path, name: str) -> None:
    export = tiny_export(tmp_path / "export")
    ModelSource(str(export)).check()
    (export / name).write_text(json.dumps(json.loads((export / name).read_text()) | {"auto_map": {"A": "evil.A"}}))
    with pytest.raises(ValueError, match=f"{name} has 'auto_map': the model brings code of its own"):
        ModelSource(str(export)).check()
