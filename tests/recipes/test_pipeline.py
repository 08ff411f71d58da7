"""Nightly pipeline after cleaning: its steps on a part of the standard library, in real processes.

Training runs in two processes, as on two hosts. One run is a baseline; the test kills and restarts another.
"""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.recipes.workbench import lines_of, wait_for
from tests.support.fork_server import PreparedProgram, PreparedPython
from tradewind.datasets.clean import split_of
from tradewind.datasets.documents import Document, read_documents, write_documents
from tradewind.evaluation.results import read_record
from tradewind.recipes.metrics.file import read_metrics, series
from tradewind.recipes.report import ReportConfig, write_report
from tradewind.recipes.tokenizers import BpeTokenizerConfig, train_bpe_tokenizer
from tradewind.rehearsal.local.processes import free_port
from tradewind.runtime.pods.on_host.preemption_notice import NOTICE_VARIABLE, Notice, write_notice
from tradewind.runtime.pods.verdicts import NOTICED

pytestmark = pytest.mark.slow

PACKAGES = ("asyncio", "importlib", "json", "logging")
VALIDATION_FRACTION = 0.03
STEPS = 24
LONG = {"num_train_steps": 60, "steps_per_eval": 30}
"""Settings of trainings that a test interrupts; they are long enough to stop between two steps."""
SEQ_LEN = 64
TIMEOUT = 500.0
"""Seconds that a step may take on a busy machine."""

STEP = """
import importlib, json, os, sys
module, function, config, settings = sys.argv[1:5]
if len(sys.argv) > 5:
    import jax
    jax.distributed.initialize(sys.argv[5], 2, int(sys.argv[6]))
module = importlib.import_module(module)
print(json.dumps(getattr(module, function)(getattr(module, config)(**json.loads(settings)))))
sys.stdout.flush()
os._exit(0)
"""
SLOW_STORE = """
import time
import levanter.checkpoint
write = levanter.checkpoint._save_metadata
levanter.checkpoint._save_metadata = lambda *args: (time.sleep(5), write(*args))
"""
CACHE = ("tradewind.recipes.token_cache", "build_token_cache", "TokenCacheConfig")
TRAIN = ("tradewind.recipes.train_lm", "train_lm", "LmTrainConfig")
LOG_PROBS = ("tradewind.evaluation.log_probs", "measure_log_probs", "LogProbsConfig")
SCORES = """
import json, os, sys
from tradewind.evaluation import log_probs, probextraction, visualize
from tradewind.recipes.evaluate_lm import LmEvalConfig, evaluate_lm
root, seq_len = sys.argv[1], int(sys.argv[2])
inputs = {f"{name}_path": f"{root}/{name}" for name in ("train", "cache", "tokenizer")}
sample = {"prompt": "def ", "sample_tokens": 60}
found = {"evaluated": evaluate_lm(
    LmEvalConfig(**inputs, output_path=f"{root}/eval", model_size="tiny", seq_len=seq_len, **sample)
)}
model, texts = f"{root}/train", f"{root}/clean/validation"

def probs(name, sets, **given):
    made = log_probs.LogProbsConfig(model, sets, f"{root}/{name}", seq_len=seq_len, per_device_batch_size=16, **given)
    return log_probs.measure_log_probs(made)["sets"]

found["both"] = probs("probs", {"cache": f"{root}/cache", "a/texts": texts})
found["checkpoint"] = probs("probs-checkpoint", {"cache": f"{root}/cache"}, weights="checkpoint")["cache"]
found["first"] = probs("probs-first", {"cache": f"{root}/cache"}, max_sequences=1)["cache"]
os.remove(f"{root}/probs/sets/a/texts.json")
with open(f"{root}/probs/sets/cache.json") as file:
    kept = json.load(file) | {"loss": 42.0}
with open(f"{root}/probs/sets/cache.json", "w") as file:
    json.dump(kept, file)
again = probs("probs", {"cache": f"{root}/cache", "a/texts": texts})
found["again"] = {"kept": again["cache"]["loss"], "same": again["a/texts"] == found["both"]["a/texts"]}
pages = visualize.VisualizeConfig(
    model, {"cache": f"{root}/cache"}, f"{root}/pages", seq_len=seq_len, num_docs_per_dataset=1, comparison_path=model,
    comparison_weights="checkpoint", per_device_batch_size=16,
)
found["pages"] = visualize.draw_log_probs(pages)["pages"]
book = probextraction.ProbextractionConfig(
    model, {"book": texts}, f"{root}/book", prefix_tokens=1, suffix_tokens=seq_len - 1, stride=97,
    per_device_batch_size=16,
)
found["book"] = probextraction.measure_extraction(book)["sets"]["book"]
try:
    probs("probs-long", {"a/texts": texts, "cache": f"{root}/nothing"})
except ValueError as error:
    found["refused"] = str(error)
print(json.dumps(found))
sys.stdout.flush()
os._exit(0)
"""


@dataclass(frozen=True)
class Pipeline:
    """Folder of all outputs; starts the steps."""

    root: Path
    python: PreparedPython

    def path(self, name: str) -> str:
        return str(self.root / name)

    def environment(self) -> dict[str, str]:
        """Return the environment of a step's process."""
        return os.environ | {
            "JAX_COMPILATION_CACHE_DIR": "",  # the tests read the steps' own cache
            "HOME": str(self.root),
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=1",
        }

    def start(
        self, step: tuple[str, str, str], settings: dict[str, Any], *more: str, code: str = STEP
    ) -> PreparedProgram:
        return self.python.start(code, *step, json.dumps(settings), *more, env=self.environment())

    def run(self, step: tuple[str, str, str], **settings: Any) -> dict[str, Any]:
        return result_of(self.start(step, settings))

    def train_settings(self, name: str) -> dict[str, Any]:
        return {
            "cache_path": self.path("cache"),
            "tokenizer_path": self.path("tokenizer"),
            "output_path": self.path(name),
            "model_size": "tiny",
            "num_train_steps": STEPS,
            "learning_rate": 0.01,
            "batch_size": 8,
            "seq_len": SEQ_LEN,
            "steps_per_eval": STEPS // 2,
            "max_eval_batches": None,
            "checkpoint_seconds": 1e4,
        }

    def start_hosts(self, name: str, **settings: Any) -> list[PreparedProgram]:
        coordinator = f"127.0.0.1:{free_port()}"
        settings = self.train_settings(name) | settings
        return [self.start(TRAIN, settings, coordinator, str(host)) for host in range(2)]


def result_of(process: PreparedProgram) -> dict[str, Any]:
    """Return the step's result; its progress lines are under ``printed``."""
    *printed, result = lines_of(process)
    return {**json.loads(result), "printed": printed}


def results_of(hosts: list[PreparedProgram]) -> list[dict[str, Any]]:
    """Return the step's result on each host; if one host fails, kill the others."""
    try:
        return [result_of(host) for host in hosts]
    finally:
        for host in hosts:
            host.kill()


def newest_checkpoint(train_path: Path) -> int:
    """Return the last step in the newest complete checkpoint, or -1 without one."""
    steps = [-1]
    for path in train_path.glob("checkpoints/step-*/metadata.json"):
        try:
            steps.append(json.loads(path.read_text())["step"])
        except (OSError, ValueError):
            continue  # another process is writing or replacing it
    return max(steps)


def source_files(split: str) -> Iterator[Document]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = str(path.relative_to(root))
            if split_of(name, VALIDATION_FRACTION) == split:
                yield Document(name, path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory, python: PreparedPython) -> Pipeline:
    """Run all steps up to the training; its baseline run in two processes is ``train``."""
    pipeline = Pipeline(tmp_path_factory.mktemp("pipeline"), python)
    for split in ("train", "validation"):
        write_documents(pipeline.path(f"clean/{split}"), source_files(split))
    train_bpe_tokenizer(BpeTokenizerConfig(pipeline.path("clean/train"), pipeline.path("tokenizer"), vocab_size=300))
    cache = {"input_path": pipeline.path("clean"), "tokenizer_path": pipeline.path("tokenizer")}
    counts = pipeline.run(CACHE, **cache, output_path=pipeline.path("cache"))
    assert counts["train_tokens"] > counts["validation_tokens"] > 1000
    for result in results_of(pipeline.start_hosts("train")):
        assert result["steps"] == STEPS
    return pipeline


@pytest.fixture(scope="module")
def scores(pipeline: Pipeline) -> dict[str, Any]:
    """Return what the steps that score tokens find of ``train``, all in one process."""
    return result_of(pipeline.python.start(SCORES, str(pipeline.root), str(SEQ_LEN), env=pipeline.environment()))


@pytest.fixture(scope="module")
def results(scores: dict[str, Any]) -> dict[str, Any]:
    """Return the evaluation of ``train``."""
    return {**scores["evaluated"], "printed": scores["printed"]}


def test_training_in_two_processes_learns_and_measures(pipeline: Pipeline) -> None:
    metrics = read_metrics(pipeline.path("train/metrics.jsonl"))
    steps, losses = series(metrics, "train/loss")
    assert steps == list(range(2, STEPS))  # Levanter does not report the first two
    assert sum(losses[-5:]) < sum(losses[:5]) - 2.0
    eval_steps, eval_losses = series(metrics, "eval/loss")
    assert eval_steps == [STEPS // 2, STEPS - 1] and eval_losses[1] < eval_losses[0]
    assert list((pipeline.root / "compilation-cache").iterdir())


def compiled_steps(pipeline: Pipeline) -> set[str]:
    """Return the training steps that the steps' processes compiled so far."""
    return {path.name for path in (pipeline.root / "compilation-cache").glob("jit__train_step-*-cache")}


Losses = tuple[list[int], list[float]]
"""Steps and their losses."""


@pytest.fixture(scope="module")
def baseline(pipeline: Pipeline) -> Losses:
    """Return the losses of a long baseline run in two processes."""
    results_of(pipeline.start_hosts("long", **LONG))
    return losses_of(pipeline, "long")


def losses_of(pipeline: Pipeline, name: str) -> Losses:
    return series(read_metrics(pipeline.path(f"{name}/metrics.jsonl")), "train/loss")


@pytest.mark.long
def test_training_killed_on_both_hosts_resumes_at_checkpoint(pipeline: Pipeline, baseline: Losses) -> None:
    train_path = pipeline.root / "killed"
    hosts = pipeline.start_hosts("killed", checkpoint_seconds=0.2, **LONG)
    try:
        wait_for(lambda: newest_checkpoint(train_path) >= 10, hosts[0], "a checkpoint to resume from")
    finally:
        for host in hosts:
            host.kill()
    errors = [host.communicate()[1] for host in hosts]
    assert [host.returncode for host in hosts] == [-9, -9], errors
    assert not (train_path / "result.json").exists(), "it was too fast to be killed"
    checkpoint = newest_checkpoint(train_path)
    before = len((train_path / "metrics.jsonl").read_text().splitlines())
    compiled = compiled_steps(pipeline)

    result = results_of(pipeline.start_hosts("killed", **LONG))[0]
    assert compiled_steps(pipeline) == compiled, "a restarted training compiles no step again"
    after = [json.loads(line) for line in (train_path / "metrics.jsonl").read_text().splitlines()[before:]]
    resumed_at = min(row["step"] for row in after if "train/loss" in row)
    assert resumed_at == checkpoint + 1
    for found, expected in zip(losses_of(pipeline, "killed"), baseline, strict=True):
        assert found[-10:] == expected[-10:]  # to the last bit
    assert any(line.startswith("step 60/60  loss") for line in result["printed"])


@pytest.mark.long
def test_notice_makes_hosts_save_same_step_without_loss(
    pipeline: Pipeline, baseline: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice = pipeline.path("notice.json")
    monkeypatch.setenv(NOTICE_VARIABLE, notice)
    hosts = pipeline.start_hosts("noticed", **LONG)
    metrics = pipeline.root / "noticed/metrics.jsonl"
    try:
        wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") >= 10, hosts[0], "steps to interrupt")
        write_notice(notice, Notice(time.time() + 30, "preempted"))
        errors = [host.communicate(timeout=TIMEOUT)[1] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [NOTICED, NOTICED], errors
    saved = newest_checkpoint(pipeline.root / "noticed")
    assert saved == json.loads(metrics.read_text().splitlines()[-1])["step"]

    os.remove(notice)
    results_of(pipeline.start_hosts("noticed", **LONG))
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["step"] for row in rows if "train/loss" in row] == list(range(2, 60))  # none of them twice
    assert losses_of(pipeline, "noticed") == baseline  # to the last bit


def test_training_killed_after_last_checkpoint_only_exports(pipeline: Pipeline) -> None:
    shutil.copytree(pipeline.path("train"), pipeline.path("late"))
    shutil.rmtree(pipeline.path("late/hf"))
    (pipeline.root / "late/result.json").unlink()
    result = pipeline.run(TRAIN, **pipeline.train_settings("late"))
    before = json.loads((pipeline.root / "train/result.json").read_text())
    where = {"devices": 1}  # devices of the attempt that ended it
    trained, checkpoint, export = result.pop("printed")
    assert result | {"settings": before["settings"]} == before | where
    assert trained.startswith(f"trained late: {STEPS} steps, loss ")
    assert checkpoint.endswith(f"/late/checkpoints/step-{STEPS - 1}") and export.endswith("/late/hf")
    exported = [(pipeline.root / name / "hf/model.safetensors").read_bytes() for name in ("train", "late")]
    assert exported[0] == exported[1]


@pytest.mark.long
def test_training_waits_for_last_checkpoint_before_export(pipeline: Pipeline) -> None:
    settings = pipeline.train_settings("slow") | {"num_train_steps": 10, "max_eval_batches": 1}
    result_of(pipeline.start(TRAIN, settings, code=SLOW_STORE + STEP))  # the process ends right after train_lm
    assert newest_checkpoint(pipeline.root / "slow") == 9


@pytest.mark.long
def test_one_host_ignores_incomplete_checkpoint_of_two_hosts(pipeline: Pipeline) -> None:
    shutil.copytree(pipeline.path("train/checkpoints"), pipeline.path("half/checkpoints"))
    for name in ("metadata.json", "files.json"):  # both hosts were killed while they wrote their arrays
        (pipeline.root / f"half/checkpoints/step-{STEPS - 1}/{name}").unlink()
    assert newest_checkpoint(pipeline.root / "half") == -1
    result = pipeline.run(TRAIN, **pipeline.train_settings("half"))
    before = json.loads((pipeline.root / "train/result.json").read_text())
    assert result["eval_loss"] == pytest.approx(before["eval_loss"], rel=1e-3)
    assert (pipeline.root / "half/hf/model.safetensors").exists()


def test_evaluation_of_checkpoint_and_export_matches_training(pipeline: Pipeline, results: dict[str, Any]) -> None:
    training = json.loads((pipeline.root / "train/result.json").read_text())
    assert results["hf"]["loss"] == pytest.approx(results["checkpoint"]["loss"], rel=1e-5)
    assert results["hf"]["bpb"] == pytest.approx(results["checkpoint"]["bpb"], rel=1e-5)
    assert results["checkpoint"]["loss"] == pytest.approx(training["eval_loss"], rel=1e-4)
    on_disk = json.loads((pipeline.root / "eval/results.json").read_text())
    assert on_disk == {name: value for name, value in results.items() if name != "printed"}
    assert results["printed"][0].startswith("evaluated train on ")


def test_bits_per_byte_use_bytes_of_validation_text(pipeline: Pipeline, results: dict[str, Any]) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(pipeline.path("tokenizer/tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    texts = [document.text for document in read_documents(pipeline.path("clean/validation"))]
    # Levanter puts a space before every end of text. It predicts all tokens of a sequence but the first.
    tokens = [token for text in texts for token in [*tokenizer.encode(text + " ").ids, end]]
    sequences = len(tokens) // SEQ_LEN
    assert results["tokens"] == sequences * (SEQ_LEN - 1)
    all_bytes = sum(len(text.encode()) for text in texts)
    left_out = [*tokens[0 : sequences * SEQ_LEN : SEQ_LEN], *tokens[sequences * SEQ_LEN :]]
    spelled = {token: len(entry) for entry, token in tokenizer.get_vocab().items()} | {end: 0}
    # An omitted token may contain one of those spaces, at most one per text.
    assert 0 <= results["bytes"] - (all_bytes - sum(spelled[token] for token in left_out)) <= len(texts)
    bits = results["checkpoint"]["loss"] * results["tokens"] / 0.6931471805599453
    assert results["checkpoint"]["bpb"] == pytest.approx(bits / results["bytes"], rel=1e-9)


def test_log_probs_match_levanters_and_bytes_of_texts(
    pipeline: Pipeline, results: dict[str, Any], scores: dict[str, Any]
) -> None:
    cache, texts = scores["both"]["cache"], scores["both"]["a/texts"]
    assert cache["levanter"]["loss"] == pytest.approx(results["hf"]["loss"], rel=1e-6)
    for measure in ("loss", "bits_per_byte"):
        assert scores["checkpoint"][measure] == pytest.approx(cache[measure], rel=1e-6)
        assert texts[measure] == pytest.approx(cache[measure], rel=1e-12)
    rows = pq.read_table(pipeline.root / "probs/sets/a/texts.parquet").to_pylist()
    assert [row["document"] for row in rows] == [document.id for document in source_files("validation")]
    # All tokens but the first of each sequence are predicted, so a text lacks some bytes in each of its sequences.
    for row, document in zip(rows, source_files("validation"), strict=True):
        missing = len(document.text.encode()) - row["bytes"]
        assert 0 <= missing <= 16 * (row["tokens"] // (SEQ_LEN - 1) + 2)
    whole = scores["both"]["a/texts"]
    record = read_record(str(pipeline.root / "probs-checkpoint"))
    score = record.tasks["cache"].score("bits_per_byte")
    assert score is not None and score.value == scores["checkpoint"]["bits_per_byte"]
    assert (whole["tokens"], whole["bytes"]) == tuple(sum(row[key] for row in rows) for key in ("tokens", "bytes"))
    assert whole["bits_per_byte"] == pytest.approx(whole["nats"] / 0.6931471805599453 / whole["bytes"])
    assert whole["bits_per_byte"] == pytest.approx(results["hf"]["bpb"], rel=2e-3)  # it lacks the last tokens
    assert whole["levanter"]["bits_per_byte"] == pytest.approx(results["hf"]["bpb"], rel=0.02)  # spaces before ends


def test_sets_that_are_done_are_kept_and_missing_ones_named(pipeline: Pipeline, scores: dict[str, Any]) -> None:
    assert scores["again"] == {"kept": 42.0, "same": True}
    written = json.loads((pipeline.root / "probs/log_probs.json").read_text())
    assert written["sets"]["cache"]["loss"] == 42.0 and written["model"]["weights"] == "export"
    assert scores["refused"] == f"sets['cache']: there is nothing at {pipeline.root}/nothing."
    assert not (pipeline.root / "probs-long").exists()


def test_suffix_after_one_token_is_as_likely_as_its_sequence(pipeline: Pipeline, scores: dict[str, Any]) -> None:
    rows = pq.read_table(pipeline.root / "book/sets/book").to_pylist()
    assert len(rows) == scores["book"]["windows"] > 10
    assert rows[0]["log_prob"] == pytest.approx(-scores["first"]["nats"], rel=1e-5)
    texts = {document.id: document.text.encode() for document in source_files("validation")}
    for row in rows:
        suffix = texts[row["document"]][row["suffix_begin"] : row["suffix_end"]]
        assert len(suffix) == row["suffix_end"] - row["suffix_begin"] >= SEQ_LEN - 1
    assert (pipeline.root / "book/sets/book.svg").read_text().startswith("<svg")


def test_page_of_texts_compares_two_models(scores: dict[str, Any]) -> None:
    shown = Path(scores["pages"]["cache"]).read_text()
    assert shown.count("<span") == SEQ_LEN and 'title="0.000, then 0.000"' in shown and "<script" not in shown


@pytest.mark.long
def test_two_hosts_find_the_same_log_probs(pipeline: Pipeline, scores: dict[str, Any]) -> None:
    sets = {"cache": pipeline.path("cache"), "a/texts": pipeline.path("clean/validation")}
    settings = {"model_path": pipeline.path("train"), "sets": sets, "output_path": pipeline.path("probs-hosts")}
    settings |= {"seq_len": SEQ_LEN, "per_device_batch_size": 8}
    coordinator = f"127.0.0.1:{free_port()}"
    hosts = [pipeline.start(LOG_PROBS, settings, coordinator, str(host)) for host in range(2)]
    for found in results_of(hosts):
        for name, numbers in scores["both"].items():
            assert found["sets"][name]["nats"] == pytest.approx(numbers["nats"], rel=1e-5)
            assert found["sets"][name]["bytes"] == numbers["bytes"]


@pytest.mark.long
def test_killed_log_probs_keep_the_sets_that_are_done(pipeline: Pipeline) -> None:
    sets = {f"part{number}": pipeline.path("cache") for number in range(60)}
    settings = {"model_path": pipeline.path("train"), "sets": sets, "output_path": pipeline.path("probs-killed")}
    settings |= {"seq_len": SEQ_LEN, "per_device_batch_size": 4}
    output = pipeline.root / "probs-killed"
    program = pipeline.start(LOG_PROBS, settings)
    try:
        wait_for((output / "sets/part1.json").exists, program, "two sets are measured")
    finally:
        program.kill()
    program.communicate()
    kept = {path.name: path.stat().st_mtime_ns for path in (output / "sets").glob("*.json")}
    assert 2 <= len(kept) < len(sets) and not (output / "log_probs.json").exists()
    found = result_of(pipeline.start(LOG_PROBS, settings))["sets"]
    assert {name: (output / "sets" / name).stat().st_mtime_ns for name in kept} == kept
    assert list(found) == list(sets) and len({numbers["nats"] for numbers in found.values()}) == 1


def test_report_shows_losses_curve_and_sample_after_prompt(pipeline: Pipeline, results: dict[str, Any]) -> None:
    assert results["sample"].startswith("def ") and len(results["sample"]) > 40
    inputs = {"train_path": pipeline.path("train"), "eval_path": pipeline.path("eval")}
    result = write_report(ReportConfig(**inputs, output_path=pipeline.path("report"), title="Title of the test"))
    assert result["loss"] == results["checkpoint"]["loss"]
    text = (pipeline.root / "report/report.md").read_text()
    assert text.startswith("# Title of the test\n")
    assert f"{results['checkpoint']['bpb']:.4f}" in text and results["sample"] in text and "`num_train_steps`" in text
    picture = (pipeline.root / "report/loss_curve.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000
