"""Scores of an evaluation in TensorBoard and W&B."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.made_results import made_record, made_task
from tests.support.waiting import until
from tradewind.evaluation.config import EvaluationConfig
from tradewind.evaluation.results import EvaluationRecord, Model, write_results
from tradewind.evaluation.tracking import check_trackers, checkpoint_step, report_scores, tracked_scores
from tradewind.recipes.metrics.trackers import WandbOptions


def config(output: Path = Path("/out"), **trackers: Any) -> EvaluationConfig:
    return EvaluationConfig("helm", None, str(output), model_path="/train", **trackers)


def record(folder: Path) -> EvaluationRecord:
    model = Model("/train-012345/hf/step-300", "tiny")
    tasks = [made_task("arc", groups=("all",)), made_task("few", errors=40)]
    return write_results(str(folder), made_record(model=model), tasks)


def test_tracked_scores_are_those_with_a_number(tmp_path: Path) -> None:
    scores = tracked_scores(record(tmp_path))
    assert {name.split("/")[1] for name in scores} == {"arc", "all"}
    assert scores["eval/arc/acc/low"] < scores["eval/arc/acc"] < scores["eval/arc/acc/high"]


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("/train-012345/hf/step-300", 300),
        ("/a/step-10/b/step-20/", 20),
        ("hub:org/step-3b@main", 0),
        ("/a/my-step-5x", 0),
        ("/train", 0),
    ],
)
def test_step_is_that_of_the_checkpoint(path: str, step: int) -> None:
    assert checkpoint_step(path) == step


@pytest.mark.slow
def test_tensorboard_and_offline_wandb_get_the_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    output = tmp_path / "eval-012345"
    found = record(output)
    options = WandbOptions("project", tags=["a"])
    report_scores(found, config(output, tensorboard=True, wandb=options, wandb_tags=["every-night"]))
    [events] = (output / "tensorboard").iterdir()
    assert events.read_bytes().count(b"eval/arc/acc/low") == 1
    [run] = (output / "wandb").glob("offline-run-*-eval-012345/run-*.wandb")
    until(lambda: b"eval/arc/acc/low" in run.read_bytes(), "the service of W&B has written the scores")
    assert b"every-night" in run.read_bytes()
    wandb.teardown()


def test_nothing_written_without_trackers(tmp_path: Path) -> None:
    found = record(tmp_path)
    before = sorted(tmp_path.iterdir())
    report_scores(found, config(tmp_path, wandb=WandbOptions("p", mode="disabled")))
    report_scores(replace(found, tasks={}), config(tmp_path))
    assert sorted(tmp_path.iterdir()) == before


def test_missing_library_of_tracker_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_trackers(config(tensorboard=True, wandb=WandbOptions("p")))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="tensorboard needs tensorboardX, which is not installed"):
        check_trackers(config(tensorboard=True))
    with pytest.raises(ValueError, match="wandb needs wandb, which is not installed"):
        check_trackers(config(wandb=WandbOptions("p")))
    check_trackers(config(wandb=WandbOptions("p", mode="disabled")))
