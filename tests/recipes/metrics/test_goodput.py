"""Goodput and the progress line, with manual clocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tradewind.recipes.metrics.file import read_metrics
from tradewind.recipes.metrics.tracking import Goodput, ProgressReporter, StepTimer, TrackingOptions, TrainingLog


def test_repeated_step_counts_once() -> None:
    rows = [{"step": step, "step_seconds": 2.0} for step in range(10)]
    goodput = Goodput(rows, started=0.0, restarts=1)
    goodput.add(5, None)  # the attempt's first step, after a checkpoint of step 4: its earlier duration counts
    assert goodput.share(100.0) == pytest.approx(6 * 2.0 / 100)
    goodput.add(6, 3.0)  # 7, 8 and 9 are lost until the training repeats them
    assert goodput.share(100.0) == pytest.approx((6 * 2.0 + 3.0) / 100)


def test_new_training_has_goodput_only_after_restart() -> None:
    rows = [{"step": 0, "step_seconds": 10.0}]
    for restarts, expected in ((0, None), (1, 0.25)):
        goodput = Goodput(rows, started=1000.0, restarts=restarts)
        goodput.add(1, None)
        assert goodput.share(1040.0) == expected
    assert Goodput([], started=0.0, restarts=3).share(100.0) is None, "it has no step"


def test_step_time_excludes_checkpoint_and_validation() -> None:
    timer = StepTimer()
    assert timer.end(5.0) is None  # the first step of an attempt is mostly compilation
    timer.begin(9.0)  # 4 seconds of validation
    assert timer.end(10.5) == 1.5


def test_progress_line_shows_goodput_and_utilization(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = TrackingOptions(str(tmp_path / "m"), 10, tokens_per_step=64, steps_per_line=1, examples_per_step=2)
    progress = ProgressReporter(options, Goodput([], started=0.0, restarts=2))
    progress.flops_per_example, progress.peak_flops = 3e9, 1e18
    for step in (2, 3):
        progress.report(step, {"train/loss": 3.0, "step_seconds": 0.5})
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("step 3/10  loss 3.000  restarts 2  goodput 0.0%")
    assert "  tokens/s " in second and "  MFU 0.0%  restarts 2" in second


def test_harness_scores_recorded_at_preceding_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "metrics.jsonl")
    log = TrainingLog(TrackingOptions(path, 10, tokens_per_step=64, steps_per_line=100))
    log.log({"train/loss": 3.0}, step=4)
    scores = {"lm_eval/piqa/acc": 0.5, "lm_eval/piqa/acc_stderr": 0.1, "lm_eval/averages/macro_avg_acc": 0.5}
    log.log(scores, step=None)
    log.log({"throughput/x": 1.0}, step=None)
    log.finish()
    assert capsys.readouterr().out == "step 5/10  piqa/acc 0.500\n"
    (row,) = read_metrics(path)
    assert row["step"] == 4 and scores.items() <= row.items()


def test_attempt_after_driver_loss_counts_from_first_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRADEWIND_FIRST_START", "1090")
    rows = [{"step": step, "time": 1000.0 + step, "step_seconds": 1.0} for step in range(10)]
    goodput = Goodput.of_this_pod(rows)
    goodput.add(10, None)
    assert goodput.share(1100.0) == pytest.approx(10 / 100)
