"""Pure parts of the recipes: sizes, metrics, bytes, report."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.datasets.caches import write_cache
from tradewind.datasets.documents import Document, write_documents
from tradewind.recipes.evaluate_lm import LmEvalConfig, Score, bytes_of_predicted, evaluate_lm
from tradewind.recipes.lm import stored_models
from tradewind.recipes.lm.levanter_parts import cache_folder, check_cache
from tradewind.recipes.lm.pod_config import TrainingOutput
from tradewind.recipes.lm.token_bytes import TokenBytes
from tradewind.recipes.lm.training_summary import TYPICAL_UTILIZATION, TrainingSummary, end_lines
from tradewind.recipes.metrics.file import MetricsFile, read_metrics, series
from tradewind.recipes.metrics.tracking import TrackingOptions, TrainingLog
from tradewind.recipes.report import ReportConfig, loss_curve, report_text, smooth, write_report
from tradewind.recipes.tokenizers import BpeTokenizerConfig, train_bpe_tokenizer
from tradewind.recipes.train_lm import LmTrainConfig, train_lm

SETTINGS: Any = {"model_size": "tiny", "num_train_steps": 9, "learning_rate": 0.1, "batch_size": 8, "seq_len": 32}
IMPORT_ALL = """
import importlib, pkgutil, sys
import tradewind.datasets, tradewind.marin.defaults, tradewind.recipes
for package in (tradewind.datasets, tradewind.marin.defaults, tradewind.recipes):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith((".comparing.reading", ".hub_texts", ".hub_tokenizers")):  # imported when called
            importlib.import_module(module.name)
outside = {name.split(".")[0] for name in sys.modules} - sys.stdlib_module_names - {"tradewind", "__main__"}
sys.exit(str(sorted(name for name in outside if not name.startswith(("_", "sitecustomize")))) if outside & set(
    "airflow fsspec haliax jax levanter matplotlib numpy pandas pyarrow ray tokenizers transformers".split()) else 0)
"""


@pytest.mark.slow
def test_modules_import_only_standard_library() -> None:
    subprocess.run([sys.executable, "-c", IMPORT_ALL], check=True, timeout=60)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"model_size": "huge"}, "model_size='huge': give one of tiny, small"),
        ({"seq_len": 1}, "seq_len=1"),
        ({"num_train_steps": 0}, "num_train_steps=0"),
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"checkpoint_seconds": 0.0}, "checkpoint_seconds=0.0"),
    ],
)
def test_training_settings_out_of_range_refused(tmp_path: Path, setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train_lm(LmTrainConfig("cache", "tokenizer", str(tmp_path), **{**SETTINGS, **setting}))


def test_token_caches_of_both_step_kinds_are_read(tmp_path: Path) -> None:
    for splits in ("clean/corpus/train", "clean/corpus/validation", "files/train", "files/validation", "half/train"):
        write_cache(tmp_path / splits)
    assert cache_folder(f"{tmp_path}/clean") == f"{tmp_path}/clean/corpus"
    assert cache_folder(f"{tmp_path}/files") == f"{tmp_path}/files"
    check_cache(f"{tmp_path}/clean")
    check_cache(f"{tmp_path}/files")
    with pytest.raises(ValueError, match="cache for validation under cache_path .*/half: give its step"):
        check_cache(f"{tmp_path}/half")


def test_evaluation_names_what_is_missing(tmp_path: Path) -> None:
    config = LmEvalConfig(str(tmp_path / "train"), "cache", "tokenizer", str(tmp_path / "eval"), "tiny", seq_len=32)
    with pytest.raises(ValueError, match="no checkpoints under train_path"):
        evaluate_lm(config)
    (tmp_path / "train" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ValueError, match="no Hugging Face export under train_path"):
        evaluate_lm(config)


def test_report_on_unfinished_training_refused(tmp_path: Path) -> None:
    config = ReportConfig(str(tmp_path), str(tmp_path), str(tmp_path / "report"))
    with pytest.raises(ValueError, match="train_path is the output of a step that has not ended"):
        write_report(config)
    (tmp_path / "result.json").write_text('{"steps": 3}')
    with pytest.raises(ValueError, match="/result.json is not what its step writes, because its tokens is missing"):
        write_report(config)
    (tmp_path / "result.json").write_text('{"steps": 3, "tokens": 1, "parameters": 1}')
    (tmp_path / "results.json").write_text('{"checkpoint": {"loss": 1.0}}')
    with pytest.raises(ValueError, match="/results.json is not .* because its hf is missing"):
        write_report(config)


def test_training_ends_without_its_result_and_metrics(tmp_path: Path) -> None:
    output = TrainingOutput(str(tmp_path), 3)
    for text in ("[]", "{}", '{"steps": "3"}', '{"steps": 2}'):
        (tmp_path / "result.json").write_text(text)
        assert output.result() is None
    assert output.last_metrics() == {}


def test_vocabulary_smaller_than_bytes_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="vocab_size=256: give a whole number of at least 257"):
        train_bpe_tokenizer(BpeTokenizerConfig(str(tmp_path), str(tmp_path / "out"), vocab_size=256))


@pytest.mark.slow
def test_same_documents_give_same_tokenizer(tmp_path: Path) -> None:
    write_documents(str(tmp_path / "raw"), [Document("a.py", "def f(x):\n    return x + 1  # naïve\n" * 20)])
    for name in ("one", "two"):
        result = train_bpe_tokenizer(BpeTokenizerConfig(str(tmp_path / "raw"), str(tmp_path / name), vocab_size=270))
        assert result == {"vocab_size": 270, "documents": 1}
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one == two and "tokenizer.json" in one


def test_later_metrics_line_of_a_step_wins(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(str(path))
    for step, loss in enumerate([3.0, 2.0, 1.5]):
        first.append(step, {"train/loss": loss})
    with path.open("a") as file:
        file.write('{"step": 3, "train')  # a kill cut this line; the next attempt resumes at step 2
    second = MetricsFile(str(path))
    second.append(2, {"train/loss": 1.6})
    second.append(2, {"eval/loss": 1.7})
    metrics = read_metrics(str(path))
    assert series(metrics, "train/loss") == ([0, 1, 2], [3.0, 2.0, 1.6])
    assert series(metrics, "eval/loss") == ([2], [1.7])


def test_object_store_metrics_survive_writer_process(gs_folder: str) -> None:
    path = f"{gs_folder}/metrics.jsonl"
    for step in (0, 1):
        metrics = MetricsFile(path)
        metrics.append(step, {"train/loss": 1.0})
        metrics.flush()
    assert [row["step"] for row in read_metrics(path)] == [0, 1]


def test_progress_line_every_few_steps_without_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = TrainingLog(TrackingOptions(str(tmp_path / "m.jsonl"), total_steps=6, tokens_per_step=8, steps_per_line=2))
    for step in (2, 3, 4, 5, 5):
        log.log({"train/loss": 4.0 - step / 10, "optim/other": 1.0}, step=step)
    log.log({"eval/loss": 3.25}, step=5)
    log.log({"throughput/total": 1.0}, step=5)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  tokens/s")[0] for line in lines] == [
        "step 4/6  loss 3.700",
        "step 6/6  loss 3.500",
        "step 6/6  validation loss 3.250",
    ]
    assert all("tokens/s" in line for line in lines[:2])
    assert len((tmp_path / "m.jsonl").read_text().splitlines()) == 5


def test_bits_per_byte_exclude_first_end_and_leading_space() -> None:
    # Token n spells n bytes, of which an odd one ends with a space; 0 ends a text, and a space of no text precedes it.
    spelling = TokenBytes(np.arange(10), np.zeros(10, bool), np.arange(10) % 2 == 1, end_of_text=0)
    spelled = spelling.spelled(np.array([4, 3, 3, 0, 2, 2, 1, 0, 9, 9, 9]), np.array([0, 4, 8]))
    assert bytes_of_predicted(spelled, 4) == (3 + (3 - 1) + 0) + (2 + (1 - 1) + 0)
    assert bytes_of_predicted(spelled, 11) == 3 + 2 + 2 + 2 + 0 + 27
    score = Score(nats=float(np.log(2)) * 300, tokens=100, text_bytes=150)
    assert score.bits_per_byte == pytest.approx(2.0)
    assert score.loss == pytest.approx(np.log(2) * 3)


@pytest.mark.slow
def test_loss_curve_smooths_and_needs_no_measurement() -> None:
    assert smooth([2.0, 2.0, 2.0]) == pytest.approx([2.0, 2.0, 2.0])
    assert loss_curve([], "empty").startswith(b"\x89PNG")


def test_report_shows_sample_in_block_and_all_settings() -> None:
    losses = {"loss": 1.0, "bpb": 1.0}
    results = {"checkpoint": losses, "hf": losses, "tokens": 1, "bytes": 2, "prompt": "x", "sample": "a\n```\nb"}
    training = {"steps": 1, "tokens": 8, "parameters": 1, "settings": {"seed": 0, "wandb": None, "tensorboard": False}}
    page = report_text("Title", training, results, [])
    assert "The model continues `x`:\n\n````text\na\n```\nb\n````\n" in page
    assert "The model begins a text:" in report_text("Title", training, {**results, "prompt": None}, [])
    assert page.endswith("|\n| `seed` | `0` |\n"), "a setting of 0 is one"


def test_report_for_continued_training_without_settings() -> None:
    losses = {"loss": 1.0, "bpb": 1.0}
    results = {"checkpoint": losses, "hf": losses, "tokens": 1, "bytes": 2, "prompt": None, "sample": "a"}
    training = {"steps": 40, "first_step": 20, "tokens": 2000, "parameters": 1}
    metrics = [{"step": step, "time": step / 2, "train/loss": 1.0} for step in range(20, 40)]
    page = report_text("Title", training, results, metrics)
    assert "2,000 tokens in 20 steps" in page, "its own"
    assert "200 tokens/s" in page
    assert page.endswith("\n```\n") and "Settings" not in page


@pytest.mark.parametrize("path", ["owner/name@main", "hf://owner/name@main"])
def test_hub_weights_found_under_every_name_form(path: str) -> None:
    fs, name = stored_models._file_system_of(path)
    assert (fs.protocol, name) == ("hf", "owner/name@main")


def test_index_of_weights_is_read_within_a_bound(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "gone\\u001b.safetensors"}}')
    assert stored_models.missing_weights(str(tmp_path)) == "gone\x1b.safetensors"
    os.truncate(index, 3 << 30)
    with pytest.raises(ValueError, match="index.json is no file of at most 16,777,216 bytes"):
        stored_models.missing_weights(str(tmp_path))


SUMMARY = TrainingSummary("run", "LlamaConfig", 10**9, 1000, 1000 * 512, 2048, 6e9, 128, "TPU v4", 275e12)


def test_hours_reported_only_when_device_flops_known() -> None:
    flops = 6e9 * 1000 * 512 * 2048
    assert SUMMARY.flops == flops
    assert SUMMARY.hours == pytest.approx(flops / (128 * 275e12 * TYPICAL_UTILIZATION) / 3600)
    assert dataclasses.replace(SUMMARY, device_flops=None).hours is None
    assert dataclasses.replace(SUMMARY, flops_per_token=None).hours is None


def test_summary_of_continued_training_counts_own_steps() -> None:
    result = {"run_id": "run", "steps": 40, "train_loss": 2.0, "eval_loss": None, "eval_losses": {}}
    places = {"checkpoint": "c", "export": None}
    assert end_lines(result | places)[0] == "trained run: 40 steps, loss 2.000, validation loss not measured"
    assert end_lines(result | places | {"first_step": 30})[0].startswith(
        "trained run: 10 steps up to step 40, loss 2.000"
    )
