"""Functions of the sample steps. Each writes its files with the package's own writers, where there are some."""

from __future__ import annotations

import csv
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tradewind import this_output_path, versioned
from tradewind.cloud_tpu.goodput import METRICS_FILE
from tradewind.datasets.backends import Backend
from tradewind.datasets.dataset import Dataset
from tradewind.evaluation.results import (
    EvaluationRecord,
    Model,
    Sample,
    Serving,
    Status,
    TaskResult,
    write_results,
)
from tradewind.recipes.metrics.file import MetricsFile, read_metrics
from tradewind.records.attempts import attempt_folder, newest_attempt
from tradewind.runtime.pods.timeline import TIMELINE_FILE, Timeline, TimelineEvent

WORDS = ["the", "tide", "carries", "every", "boat", "that", "waits", "long", "enough", "for", "wind", "and", "water"]
SHARDS = 12
HOUR_S = 3600.0


@dataclass(frozen=True)
class Chapters:
    output_path: Any = this_output_path()
    rows: Any = versioned(400)
    cut_shard: Any = None
    """The file of this number is no gzip."""


def write_chapters(config: Chapters) -> dict[str, int]:
    """Write one file per shard; the last three have a row that no reader takes."""
    made = random.Random(7)
    items = [
        [
            {"id": f"{shard}-{row}", "text": " ".join(made.choices(WORDS, k=made.randint(3, 60)))}
            for row in range(config.rows)
        ]
        for shard in range(SHARDS)
    ]
    pattern = f"{config.output_path}/chapters-{{shard:05d}}-of-{{total:05d}}.jsonl.gz"
    in_process().execute(Dataset.from_list(items).flat_map(list).write_jsonl(pattern))
    if config.cut_shard is not None:
        Path(pattern.format(shard=config.cut_shard, total=SHARDS)).write_bytes(b"\x1f\x8b\x08\x00cut")
    return {"shards": SHARDS, "rows": SHARDS * config.rows}


def in_process() -> Backend:
    return Backend("sync")


@dataclass(frozen=True)
class Documents:
    chapters: Any
    output_path: Any = this_output_path()
    min_words: Any = versioned(10)


def long_documents(config: Documents) -> Dataset[Any]:
    """Keep chapters that are long enough; a few rows fail, and are kept apart."""

    def is_long(row: dict[str, Any]) -> bool:
        if row["id"].endswith("-13"):
            raise ValueError(f"row {row['id']} has no language")
        return len(row["text"].split()) >= config.min_words

    rows = Dataset.from_files(f"{config.chapters}/*.jsonl.gz").load_jsonl().filter(is_long)
    return rows.write_jsonl(f"{config.output_path}/documents-{{shard:05d}}-of-{{total:05d}}.jsonl.gz")


@dataclass(frozen=True)
class Training:
    documents: Any
    learning_rate: Any
    diverges: Any
    steps: Any = versioned(400)
    model: Any = versioned({"layers": 4, "hidden": 256, "heads": 4, "activation": "gelu"})
    output_path: Any = this_output_path()


def train(config: Training) -> dict[str, Any]:
    """Leave what a training on two slices leaves in three hours, in a moment. One that diverges ended hours ago."""
    attempt = newest_attempt(config.output_path)
    assert attempt is not None
    folder = Path(attempt_folder(config.output_path, attempt.number))
    folder.mkdir(parents=True, exist_ok=True)
    pod = SamplePod(config)
    (folder / "host-0.log").write_text("loading the model\nstep 1: loss 5.5\n")
    pod.wait(420, ("train-a", "train-b"))
    pod.run(pod.saved + 113)
    pod.end("preempted", "node died", "Slice train-b was taken: node 10.0.0.5 died.")
    pod.wait(240, ("train-a", "train-b"))
    if config.diverges:
        pod.run(pod.saved + 130)
        error = f"the loss of step {pod.step} is not a number"
        pod.end("failed", "exception", f"Host 0 raised ValueError: {error}.")
        pod.write(folder, time.time() - 4 * HOUR_S)
        raise ValueError(error)
    pod.run(pod.saved + 65)
    noticed = "Slice train-b had a preemption notice, and host 1 saved a checkpoint."
    pod.end("preempted", "checkpoint on notice", noticed, is_saved=True)
    pod.wait(900, ("train-a",))
    pod.run(config.steps)
    pod.note("done", step=config.steps)
    pod.write(folder, time.time())
    write_checkpoint(Path(config.output_path), config.steps)
    result = {
        "parameters": 4_194_304, "tokens": config.steps * 8192, "steps": config.steps, "first_step": 0,
        "flops": 6.0 * 4_194_304 * config.steps * 8192, "device_flops": 2.75e14, "train_loss": pod.loss,
        "eval_loss": pod.loss + 0.05, "devices": 8, "device_kind": "TPU v4",
        "settings": {"learning_rate": config.learning_rate, "model_size": "tiny"},
    }  # fmt: skip
    Path(config.output_path, "result.json").write_text(json.dumps(result))
    return {"loss": pod.loss}


class SamplePod:
    """The events and metrics of a pod; its clock begins at 0 and runs as the samples say."""

    def __init__(self, config: Training) -> None:
        self._config = config
        self._metrics = MetricsFile(f"{config.output_path}/{METRICS_FILE}")
        self._events: list[TimelineEvent] = []
        self._rows: list[tuple[int, dict[str, float]]] = []
        self._now = 0.0
        self._starts = 0
        self.step = self.saved = max((row["step"] for row in read_metrics(self._metrics.path)), default=0) // 50 * 50
        self._random = random.Random(f"{config.learning_rate}")
        self.loss = math.nan

    def note(self, name: str, **fields: Any) -> None:
        self._events.append(TimelineEvent(name, self._now, **fields))

    def write(self, folder: Path, ended: float) -> None:
        """Write all, so that the pod's last event was then."""
        began = ended - self._now
        timeline = Timeline(str(folder / TIMELINE_FILE))
        for event in self._events:
            timeline.note(replace(event, at=began + event.at))
        timeline.flush()
        for step, values in self._rows:
            self._metrics.append(step, {**values, "time": round(began + values["time"], 3)})

    def wait(self, seconds: float, slices: tuple[str, ...]) -> None:
        """Wait for slices, and start on them."""
        self.note("waiting", group="v4-8", sizes=(2, 1))
        self._now += seconds
        self.note("reserved", slices=slices, num_slices=len(slices), reserve_s=seconds)
        self._now += 35
        hosts = tuple(f"10.0.0.{4 + ord(each[-1]) - ord('a')}" for each in slices)
        self.note("started", slices=slices, hosts=hosts, num_slices=len(slices), restarts=self._starts, start_s=35.0)
        self._starts += 1
        self.step = self.saved

    def run(self, until: int) -> None:
        """Take steps, and save each fiftieth."""
        self._now += 50
        self.note("first_step", step=self.step)
        while self.step < until:
            seconds = 18 + self._random.random() * (6 if self.step % 50 else 30)
            self._now += seconds
            rate = float(self._config.learning_rate)
            ideal = 2.2 + 3.4 * math.exp(-self.step * rate * 8) + 20 * (rate - 0.002) ** 2
            self.loss = round(ideal + self._random.gauss(0, 0.06), 4)
            values = {"time": self._now, "step_seconds": round(seconds, 3), "train/loss": self.loss,
                      "train/learning_rate": rate * min(1, (self.step + 1) / 40)}  # fmt: skip
            if self.step % 50 == 49:
                values["eval/loss"] = round(ideal + 0.05, 4)
            self._rows.append((self.step, values))
            self.step += 1
            if self.step % 50 == 0:
                self.saved = self.step

    def end(self, name: str, cause: str, sentence: str, *, is_saved: bool = False) -> None:
        """End the processes as an incident does."""
        self.saved = self.step if is_saved else self.saved
        self._now += 12
        steps = {"step": self.step, "checkpoint_step": self.saved}
        took = {"detect_s": 9.5, "end_s": 2.5}
        self.note(name, cause=cause, sentence=sentence, slice_name="train-b", host=0, **took, **steps)


def write_checkpoint(output: Path, step: int) -> None:
    """Write an export as Hugging Face has it, with small tensors."""
    import numpy as np
    from safetensors.numpy import save_file

    export = output / "hf" / f"step-{step}"
    export.mkdir(parents=True, exist_ok=True)
    layers = {f"model.layers.{layer}.mlp.weight": np.zeros((256, 64), np.float32) for layer in range(4)}
    save_file({"model.embed.weight": np.zeros((512, 256), np.float16), **layers}, export / "model.safetensors")
    (export / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 4}, indent=2))


@dataclass(frozen=True)
class Evaluation:
    trained: Any
    skill: Any
    documents: Any = versioned(150)
    output_path: Any = this_output_path()


def evaluate(config: Evaluation) -> dict[str, Any]:
    """Write the record and the samples of an evaluation with two tasks and a group."""
    now = time.time()
    record = EvaluationRecord(
        "lm_evaluation_harness", Status.SUCCEEDED, Model(str(config.trained), Path(config.trained).name),
        Serving("levanter", "0.2", 2, "v4-8"), now - 540, now, requests=2 * config.documents, prompt_tokens=61_000,
        completion_tokens=4_100, paused_s=31.0, harness_version="0.4.13",
    )  # fmt: skip
    tasks = [sums(name, config, groups=("arithmetic",)) for name in ("sums_easy", "sums_hard")]
    write_results(config.output_path, record, tasks)
    return {"tasks": len(tasks)}


def sums(name: str, config: Evaluation, groups: tuple[str, ...]) -> TaskResult:
    made = random.Random(f"{name} {config.skill}")
    share = config.skill * (0.6 if name.endswith("hard") else 1)
    samples = []
    for number in range(config.documents):
        first, second = made.randint(10, 99), made.randint(10, 99)
        is_right = made.random() < share
        answer = str(first + second + (0 if is_right else made.choice([-10, -1, 1, 10])))
        prompt, target = f"What is {first} + {second}?\nAnswer:", str(first + second)
        if number == 3:
            samples.append(Sample(f"{number}", prompt, target, "", {}, "HTTP 400: the prompt is too long"))
        else:
            samples.append(Sample(f"{number}", prompt, target, answer, {"exact_match": float(is_right)}))
    better = {"exact_match": True}
    return TaskResult(name, name, "2", 5, better, {}, config.documents, tuple(samples), groups=groups)


@dataclass(frozen=True)
class Report:
    trained: Any
    output_path: Any = this_output_path()


def report(config: Report) -> None:
    """Write a picture of the losses, and a page in Markdown."""
    from tradewind.recipes.report import loss_curve

    metrics = read_metrics(f"{config.trained}/{METRICS_FILE}")
    output = Path(config.output_path)
    output.joinpath("loss_curve.png").write_bytes(loss_curve(metrics, "A tiny model"))
    lines = [
        "# A tiny model", "", "The loss falls as it should.", "", "| step | loss |", "| ---: | ---: |",
        *(f"| {row['step']} | {row['train/loss']:.3f} |" for row in metrics[::100]),
        "", "![Loss by step](loss_curve.png)", "", "```python", 'print("tiny")', "```", "",
    ]  # fmt: skip
    output.joinpath("report.md").write_text("\n".join(lines))


@dataclass(frozen=True)
class Formats:
    output_path: Any = this_output_path()
    rows: Any = versioned(12_000)


def write_formats(config: Formats) -> dict[str, int]:
    """Write the same rows in each format that a browser of data shows."""
    rows = list(sample_rows(config.rows))
    items = Dataset.from_list([rows]).flat_map(list)
    for name in ("rows.jsonl", "rows.jsonl.gz", "rows.jsonl.zst"):
        in_process().execute(items.write_jsonl(f"{config.output_path}/{name}"))
    in_process().execute(items.write_parquet(f"{config.output_path}/rows.parquet"))
    output = Path(config.output_path)
    with (output / "rows.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["id", "language", "words", "score"], extrasaction="ignore")
        table.writeheader()
        table.writerows(rows[:2_000])
    (output / "notes.txt").write_text("Made by scripts/ui_samples.\n" * 50)
    (output / "empty.jsonl").write_text("")
    (output / "cut.parquet").write_bytes((output / "rows.parquet").read_bytes()[:1_000])
    (output / 'ünï <b> & "quotes".txt').write_text("A name that a page must show as text.\n")
    return {"rows": len(rows)}


def sample_rows(count: int) -> Iterator[dict[str, Any]]:
    made = random.Random(3)
    for number in range(count):
        text = " ".join(made.choices(WORDS, k=made.randint(5, 40)))
        yield {
            "id": number,
            "language": made.choice(["en", "de", "fr"]),
            "text": text if number else f"<script>alert(1)</script> {text}",
            "words": len(text.split()),
            "score": round(made.random(), 4),
            "meta": {"source": f"https://example.org/{number}", "tags": made.sample(WORDS, 2)},
        }


@dataclass(frozen=True)
class Vocabulary:
    output_path: Any = this_output_path()


def write_tokenizers(config: Vocabulary) -> None:
    """Write tokenizers of single letters; the one in ``end`` marks the end of a text."""
    from tests.datasets.caches import with_tokenizers

    with_tokenizers(Path(config.output_path))


@dataclass(frozen=True)
class Link:
    text: Any
    inputs: Any = ()
    fails: Any = False
    output_path: Any = this_output_path()


def write_link(config: Link) -> None:
    """Write one line, or fail."""
    if config.fails:
        raise RuntimeError(f"step {config.text} failed as configured: disk quota exceeded on host 10.0.0.4")
    Path(config.output_path, "text").write_text(f"{config.text}\n")
