"""Summary of a step's pod: one line in its task's log and a table on its page."""

from __future__ import annotations

import importlib
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


def leave(output: Path, attempt: int, text: str) -> None:
    file = Path(attempt_folder(str(output), attempt), "timeline.json")
    file.parent.mkdir(parents=True)
    file.write_text(text)
    (output / ".attempts" / f"{attempt}.json").write_text("{}")


def test_a_pod_that_started_again_is_told_of_in_one_line(output: Path) -> None:
    write_metrics(output)
    told = format_summary(ROUGH, str(output))
    assert told == "1 preemption, 1 failure, 31 steps lost, waited 1.1 min, goodput 0.25"


def test_goodput_is_told_only_of_what_measured_its_steps(output: Path) -> None:
    assert format_summary(ROUGH, str(output)) == "1 preemption, 1 failure, 31 steps lost, waited 1.1 min"


def test_a_pod_that_ran_through_is_not_worth_a_line(output: Path) -> None:
    assert format_summary(CALM, str(output)) is None
    assert format_summary([], str(output)) is None


def test_task_log_drill_and_progress_report_same_goodput(output: Path) -> None:
    write_metrics(output)
    leave(output, 1, timeline_text(ROUGH))
    told = pod_summary(str(output), 1, TpuSlice("v4-16"))
    drill = read_run_record(str(output.parent))
    progress = Goodput(metrics_rows((output / "metrics.jsonl").read_text()), started=START + 4)
    progress.add(99, 0.5)
    share = 99 * 0.5 / 200  # of the 200 s since the first start; step 0 has no time
    assert told is not None and told.endswith(f"goodput {share:.2f}")
    assert drill.goodput == pytest.approx(share)
    assert progress.share(START + 204) == pytest.approx(share)


def test_trainings_side_by_side_have_each_their_own_time(output: Path) -> None:
    for name in ("one", "other"):
        write_metrics(output / name)
        leave(output / name, 1, timeline_text(ROUGH))
    assert read_run_record(str(output)).goodput == pytest.approx(99 * 0.5 / 200)


def test_the_story_of_an_attempt_is_read_beside_its_output(output: Path) -> None:
    leave(output, 2, timeline_text(ROUGH))
    for resources in (TpuSlice("v4-16"), Hosts(2)):
        told = pod_summary(str(output), 2, resources)
        assert told is not None and told.startswith("1 preemption, 1 failure")
    assert pod_summary(str(output), 2, Cpu()) is None
    assert pod_summary(str(output), 1, TpuSlice("v4-16")) is None
    leave(output, 3, "half a f")
    assert pod_summary(str(output), 3, TpuSlice("v4-16")) is None


def test_the_page_shows_the_newest_attempts_events_as_text(output: Path) -> None:
    timelines = importlib.import_module("tradewind_ui.timelines")
    assert timelines.timeline_of(str(output)) == ""
    leave(output, 9, timeline_text(CALM))
    leave(output, 10, timeline_text(ROUGH))
    page = timelines.timeline_of(str(output))
    assert "<h2>Attempt 10</h2>" in page and "<p>1 preemption, 1 failure, 31 steps lost" in page
    assert page.count("<tr") == 1 + len(ROUGH)
    assert "node died" in page and "Host 0 raised &lt;ValueError&gt;." in page
    assert "<ValueError>" not in page


def test_unreadable_timeline_does_not_break_page(output: Path) -> None:
    timelines = importlib.import_module("tradewind_ui.timelines")
    leave(output, 1, "half a f")
    assert "The timeline cannot be read now" in timelines.timeline_of(str(output))


@pytest.mark.parametrize("path", ["nowhere://at/all", "gs://other/bucket", "/etc", "reference://::http://127.0.0.1/x"])
def test_a_forged_path_is_not_looked_at(path: str, output: Path) -> None:
    timelines = importlib.import_module("tradewind_ui.timelines")
    assert "The timeline is not read. The output path of this step: the path" in timelines.timeline_of(path)


def test_a_second_attempt_counts_from_the_trainings_first_start(output: Path) -> None:
    rows = [{"step": step, "time": START - 800 + step, "step_seconds": 1.0} for step in range(100)]
    output.mkdir()
    (output / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    leave(output, 2, timeline_text(ROUGH))
    told = pod_summary(str(output), 2, TpuSlice("v4-16"))
    assert told is not None and told.endswith(f"goodput {100 / 1004:.2f}")
