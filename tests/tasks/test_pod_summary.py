"""Summary of a step's pod: one line in its task's log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tradewind.cloud_tpu.goodput import metrics_rows
from tradewind.recipes.metrics.tracking import Goodput
from tradewind.records.attempts import attempt_folder
from tradewind.rehearsal.drill.outputs import read_run_record
from tradewind.runtime.pods.timeline import TimelineEvent, timeline_text
from tradewind.steps import Cpu, Hosts, TpuSlice
from tradewind.tasks.pod_summary import format_summary, pod_summary

START = 1_790_000_000.0


def event(name: str, after_s: float, **fields: Any) -> TimelineEvent:
    return TimelineEvent(name, START + after_s, **fields)


CALM = [
    event("waiting", 0),
    event("reserved", 3),
    event("started", 4),
    event("first_step", 20, step=0),
    event("done", 120, step=99),
]
ROUGH = [
    *CALM[:4],
    event("preempted", 104, cause="node died", sentence="Host 1 was lost.", step=70, checkpoint_step=40),
    event("waiting", 105),
    event("started", 165),
    event("first_step", 175, step=41),
    event("failed", 195, cause="exception", sentence="Host 0 raised <ValueError>.", step=81, checkpoint_step=80),
    event("started", 196),
    event("first_step", 200, step=81),
    event("done", 204, step=99),
]


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW__TRADEWIND__ALLOWED_ROOTS", str(tmp_path))
    return tmp_path / "output"


def write_metrics(output: Path) -> None:
    """Write steps of 0.5 s in the order in which ROUGH made them; the first of each start has no time."""
    output.mkdir(parents=True, exist_ok=True)
    starts = [range(71), range(41, 82), range(81, 100)]
    rows = [
        {"step": step, "time": START + 20} | ({} if step == steps[0] else {"step_seconds": 0.5})
        for steps in starts
        for step in steps
    ]
    (output / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 10')


def write_timeline(output: Path, attempt: int, text: str) -> None:
    file = Path(attempt_folder(str(output), attempt), "timeline.json")
    file.parent.mkdir(parents=True)
    file.write_text(text)
    (output / ".attempts" / f"{attempt}.json").write_text("{}")


def test_restarted_pod_has_summary_with_goodput_if_measured(output: Path) -> None:
    restarts = "1 preemption, 1 failure, 31 steps lost, waited 63 s"
    assert format_summary(ROUGH, str(output)) == restarts
    write_metrics(output)
    assert format_summary(ROUGH, str(output)) == f"{restarts}, goodput 0.25"
    assert format_summary(CALM, str(output)) is None
    assert format_summary([], str(output)) is None


def test_task_log_drill_and_progress_report_same_goodput(output: Path) -> None:
    write_metrics(output)
    write_timeline(output, 1, timeline_text(ROUGH))
    summary = pod_summary(str(output), 1, TpuSlice("v4-16"))
    drill = read_run_record(str(output.parent))
    progress = Goodput(metrics_rows((output / "metrics.jsonl").read_text()), started=START + 4)
    progress.add(99, 0.5)
    share = 99 * 0.5 / 200  # of the 200 s since the first start; step 0 has no time
    assert summary is not None and summary.endswith(f"goodput {share:.2f}")
    assert drill.goodput == pytest.approx(share)
    assert progress.share(START + 204) == pytest.approx(share)


def test_concurrent_trainings_each_have_their_own_time(output: Path) -> None:
    for name in ("one", "other"):
        write_metrics(output / name)
        write_timeline(output / name, 1, timeline_text(ROUGH))
    assert read_run_record(str(output)).goodput == pytest.approx(99 * 0.5 / 200)


def test_summary_exists_only_for_pods_with_readable_timeline(output: Path) -> None:
    write_timeline(output, 2, timeline_text(ROUGH))
    for resources in (TpuSlice("v4-16"), Hosts(2)):
        summary = pod_summary(str(output), 2, resources)
        assert summary is not None and summary.startswith("1 preemption, 1 failure")
    assert pod_summary(str(output), 2, Cpu()) is None
    assert pod_summary(str(output), 1, TpuSlice("v4-16")) is None
    write_timeline(output, 3, "half a f")
    assert pod_summary(str(output), 3, TpuSlice("v4-16")) is None


def test_goodput_counts_from_first_start_of_training(output: Path) -> None:
    rows = [{"step": step, "time": START - 800 + step, "step_seconds": 1.0} for step in range(100)]
    output.mkdir()
    (output / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_timeline(output, 2, timeline_text(ROUGH))
    summary = pod_summary(str(output), 2, TpuSlice("v4-16"))
    assert summary is not None and summary.endswith(f"goodput {100 / 1004:.2f}")
