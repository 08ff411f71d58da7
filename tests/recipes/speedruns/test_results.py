"""Cost of a speedrun, from the output of a training by Tradewind or by Marin."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.speedruns.trainings import training
from tradewind import ExecutorStep, versioned
from tradewind.marin.legacy import modules
from tradewind.recipes.lm import levanter_parts
from tradewind.recipes.speedruns.results import (
    SpeedrunReportConfig,
    measures_of,
    report_marins_speedrun,
    report_speedrun,
)
from tradewind.recipes.speedruns.steps import speedrun
from tradewind.recipes.steps import tokenize, train

MARINS_FIELDS = {
    "author", "description", "eval/paloma/c4_en/bpb", "model_config", "model_flops", "model_size", "resources",
    "run_completion_timestamp", "tokenized_dataset", "total_tokens", "train_config", "training_hardware_flops",
    "training_time", "wandb_run_link", "num_devices", "num_chips", "device_flops",
}  # fmt: skip
"""Fields of ``runs[0].run_info`` in results that Marin has published."""
C4 = {"step": 9, "time": 1.7e9, "train/loss": 3.0, "step_seconds": 0.5, "eval/paloma/c4_en/bpb": 1.25}


def run_info(file: Path) -> Any:
    (run,) = json.loads(file.read_text())["runs"]
    return run["run_info"]


def test_time_flops_and_utilisation_from_actual_training(tmp_path: Path) -> None:
    measured = measures_of(training(tmp_path))
    assert measured.seconds == 5.0, "ten steps, of which the first two are not timed"
    assert measured.hardware_flops == 5.0 * 4 * 1e6
    assert measured.utilisation == pytest.approx(0.3)
    assert measured.numbers()["run_completion_timestamp"] == "2023-11-14 22:13:29 UTC"


def test_repeated_step_counts_once_and_foreign_steps_never(tmp_path: Path) -> None:
    times = ((2, 1.0), (3, 9.0), (3, 1.0))
    rows: list[Mapping[str, Any]] = [{"step": step, "time": 1.0, "step_seconds": seconds} for step, seconds in times]
    assert measures_of(training(tmp_path, rows, steps=4)).seconds == 4.0
    assert measures_of(training(tmp_path, first_step=4)).seconds == 3.0


def test_flops_omitted_when_device_or_model_flops_unknown(tmp_path: Path) -> None:
    on_cpu = measures_of(training(tmp_path / "cpu", device_flops=None, device_kind="cpu")).numbers()
    assert (on_cpu["training_hardware_flops"], on_cpu["mfu"], on_cpu["training_time"]) == (None, None, 5.0)
    without = measures_of(training(tmp_path / "model", flops=None)).numbers()
    assert (without["training_hardware_flops"], without["mfu"]) == (2e7, None)


@pytest.mark.slow
def test_device_peak_from_levanter_table_and_none_for_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    assert levanter_parts.device_peak() is None and levanter_parts.device_kind() == "cpu"
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    for kind, peak in (("TPU v4", 275e12), ("NVIDIA H100 80GB HBM3", 989.5e12), ("cpu", None)):
        monkeypatch.setattr(levanter_parts, "device_kind", lambda kind=kind: kind)
        assert levanter_parts.device_peak() == peak


@pytest.mark.parametrize("missing", ["result.json", "metrics.jsonl"])
def test_unfinished_training_refused(tmp_path: Path, missing: str) -> None:
    path = training(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(ValueError, match="is no output of a finished training: give one of train, train_mixture or"):
        measures_of(path)


def test_training_too_short_to_time_refused(tmp_path: Path) -> None:
    path = training(tmp_path, [{"step": 1, "time": 1.0, "train/loss": 3.0}])
    with pytest.raises(ValueError, match="no step was timed; train for four steps at least"):
        measures_of(path)


def test_results_have_marin_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = training(tmp_path / "t", train_loss=float("nan"))
    report = report_speedrun(SpeedrunReportConfig(trained, str(tmp_path / "r"), "Ada", "Home", summary="New."))
    info = run_info(tmp_path / "r" / "speedrun_results.json")
    assert set(info) == MARINS_FIELDS | {"mfu", "train_loss", "eval_loss"}
    assert info["author"] == {"name": "Ada", "affiliation": "Home", "url": None}
    assert (info["model_flops"], info["training_hardware_flops"], info["eval_loss"]) == (6e6, 2e7, 3.0)
    assert (report["author"]["name"], report["description"], report["train_loss"]) == ("Ada", "New.", None)
    out = capsys.readouterr().out
    assert "1,000 parameters, 640 tokens, validation loss 3.0000" in out
    assert "5.0 s on 4 × TPU v4; model FLOPs: 6e+06, 30.0% of what the devices can do" in out


def test_marin_results_written_to_training_output(tmp_path: Path) -> None:
    legacy = modules()["marin.speedrun.speedrun"]
    train_config = dataclasses.make_dataclass("Simple", ["resources", "train_batch_size", "num_train_steps"])(
        modules()["marin.resources"].TpuPodConfig("v4-128"), 128, 100
    )
    llama = modules()["levanter.models.llama"].LlamaConfig(seq_len=64)
    speedrun_config = legacy.SpeedrunConfig(legacy.Author("Ada", "Home"), "New.", llama, train_config, "gs://b/tokens")
    path = training(tmp_path / "run-1a2b3c", [C4])
    config = legacy.SpeedrunResultsConfig(
        path, "marin-community", "marin", speedrun_config, f"{path}/speedrun_results.json"
    )
    report = report_marins_speedrun(config)
    info = run_info(tmp_path / "run-1a2b3c" / "speedrun_results.json")
    assert set(info) >= MARINS_FIELDS
    assert info["resources"] == {"tpu_type": "v4-128", "slice_count": 1, "device_flops_override": None}
    assert (info["num_devices"], info["eval/paloma/c4_en/bpb"], report["training_time"]) == (4, 1.25, 5.0)
    assert info["wandb_run_link"] == "https://wandb.ai/marin-community/marin/runs/run-1a2b3c"
    assert report["author"]["name"] == "Ada"


RAW = ExecutorStep("raw", None, {"n": versioned(3)})
TOKENS = tokenize("tokens", RAW, RAW)


@pytest.mark.parametrize(
    ("trained", "options", "sentence"),
    [
        (TOKENS, {}, "Step 's': trained is step 'tokens', which makes a token cache and not a trained model."),
        (3, {}, "Step 's': trained is 3, which is no input"),
        (RAW, {"author": ""}, "Step 's': author='': give a text of at least one character."),
    ],
)
def test_invalid_input_refused_at_dag_parse(trained: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        speedrun("s", trained, **{"author": "Ada", **options})
    assert sentence in str(error.value)


def test_author_and_description_are_versioned() -> None:
    trained = train("t", TOKENS, "tiny", num_train_steps=9, learning_rate=0.1, batch_size=8, seq_len=32)
    step = speedrun("s", trained, author="Ada", description="New.")
    assert (step.config.author, step.config.summary) == (versioned("Ada"), versioned("New."))
    assert step.description == "New."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parameters": "many"}, "its parameters is not a whole number from 0 on"),
        ({"tokens": None}, "its tokens is not a whole number"),
        ({"steps": float("nan")}, "its steps is not a whole number"),
        ({"devices": "four"}, "its devices is not"),
        ({"flops": 10**400}, "its flops is not a number or null"),
        ({"eval_loss": "low"}, "its eval_loss is not a number or null"),
        ({"settings": [1]}, "its settings is not an object or null"),
    ],
)
def test_invalid_result_refused_with_field(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"result.json is not what its step writes, because {message}"):
        measures_of(training(tmp_path, **changes))


@pytest.mark.parametrize("key", ["time", "step_seconds"])
@pytest.mark.parametrize("value", ["x", None, float("nan"), -1.0, 1e30, 10**400])
def test_invalid_metrics_give_no_numbers(tmp_path: Path, key: str, value: Any) -> None:
    rows = [{"step": step, "time": 1.7e9, "step_seconds": 0.5} for step in range(2, 10)]
    numbers = measures_of(training(tmp_path, [*rows, {"step": 10, key: value}], devices=0)).numbers()
    assert numbers["run_completion_timestamp"] == "2023-11-14 22:13:20 UTC"
    assert numbers["training_time"] == (5.0 if key == "time" or value != 1e30 else pytest.approx(1e31 / 9))
    assert numbers["mfu"] is None
