"""Parts of a drill, tested with files and states that the tests write."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import until
from tradewind.records.lease import Lease, Phase
from tradewind.records.manifests import MAX_MANIFEST_BYTES
from tradewind.rehearsal.drill.drill import RunMonitor, poll_in_thread
from tradewind.rehearsal.drill.faults import Fault, FaultResult, Injection, PlannedFault
from tradewind.rehearsal.drill.injection import Damage, damage_newest_checkpoint
from tradewind.rehearsal.drill.observer import TrainingHost, TrainingSnapshot, observe_training
from tradewind.rehearsal.drill.outputs import (
    OutputVerdict,
    PodEvent,
    RunRecord,
    compare_outputs,
    read_run_record,
    record_of,
)
from tradewind.rehearsal.drill.report import DrillReport
from tradewind.rehearsal.local.airflow import LocalAirflowError
from tradewind.rehearsal.local.airflow_api import AirflowApiError
from tradewind.rehearsal.local.processes import LocalStack

ROWS = [{"step": step, "time": 1.0, "step_seconds": 0.5, "train/loss": 5.0 - step} for step in range(4)]


def write_output(prefix: Path, rows: Sequence[dict[str, Any]] = ROWS, export: str = "weights") -> None:
    """Write one output with its manifest, as a training does."""
    folder = prefix / "train-123abc"
    files = {
        "metrics.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "hf/model.safetensors": export,
        "result.json": json.dumps({"output_path": str(folder)}),
        "checkpoints/step-3/d/random": export,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    manifest = [{"path": name, "size": len(text), "checksum": str(hash(text))} for name, text in files.items()]
    (folder / ".attempts/3").mkdir(parents=True)
    (folder / ".attempts/3/manifest.json").write_text(json.dumps({"attempt": 3, "files": manifest}))
    (folder / ".executor_status.lock").write_text(Lease("w", 0.0, Phase.COMMITTED, attempt=3).to_json())


def compared(folder: Path, *written: Any) -> OutputVerdict:
    """Compare an output with the one that ``write_output`` writes from these rows and export."""
    write_output(folder / "a")
    write_output(folder / "b", *written)
    [verdict] = compare_outputs(str(folder / "a"), str(folder / "b"))
    return verdict


def test_outputs_are_equal_if_only_times_and_the_prefix_differ(tmp_path: Path) -> None:
    verdict = compared(tmp_path, [{**row, "time": 9.0, "step_seconds": 0.7} for row in ROWS])
    assert verdict == OutputVerdict("train-123abc", 3, (), 2.0, 2.0)


def test_last_bit_loss_difference_and_missing_row_reported(tmp_path: Path) -> None:
    verdict = compared(tmp_path, [*ROWS[:1], ROWS[2], {**ROWS[3], "train/loss": 2.0000000000000004}], "others")
    assert verdict.different == ("hf/model.safetensors", "metrics.jsonl: of 4 rows, 1 are missing and 1 differ")


@pytest.mark.parametrize("loss", ["2.0", None, [1.0], float("nan")])
def test_loss_that_is_no_number_is_none(tmp_path: Path, loss: Any) -> None:
    verdict = compared(tmp_path, [*ROWS[:3], {**ROWS[3], "train/loss": loss}])
    assert (verdict.final_loss, verdict.baseline_loss) == (None, 2.0)


def test_missing_output_is_different(tmp_path: Path) -> None:
    write_output(tmp_path / "a")
    (tmp_path / "b").mkdir()
    [verdict] = compare_outputs(str(tmp_path / "a"), str(tmp_path / "b"))
    assert verdict.different == ("the whole output is missing",)


def no_text(file: Path) -> None:
    file.write_bytes(b"\xff\xfe" * 9)


def endless(file: Path) -> None:
    """Create a sparse file too large to read whole; it occupies no disk space."""
    os.truncate(file, MAX_MANIFEST_BYTES + 1)


@pytest.mark.parametrize(
    ("spoil", "why"), [(no_text, "because it is no text (not UTF-8)"), (endless, "because it has more than ")]
)
@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json", ".attempts/3/manifest.json", ".executor_status.lock"])
def test_unreadable_file_is_a_difference_and_drill_continues(
    tmp_path: Path, name: str, spoil: Callable[[Path], None], why: str
) -> None:
    write_output(tmp_path / "a")
    write_output(tmp_path / "b", [{**row, "time": 9.0} for row in ROWS])
    spoil(tmp_path / "b/train-123abc" / name)
    [verdict] = compare_outputs(str(tmp_path / "a"), str(tmp_path / "b"))
    unread = [text for text in verdict.different if f"/b/train-123abc/{name} cannot be read, " in text]
    assert len(unread) == 1 and why in unread[0]


@pytest.mark.parametrize("spoil", [no_text, endless])
def test_unreadable_metrics_and_timelines_named_rest_counted(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    write_output(tmp_path)
    attempts = tmp_path / "train-123abc" / ".attempts"
    for number in (1, 2):
        (attempts / str(number)).mkdir()
        (attempts / f"{number}/timeline.json").write_text(json.dumps([event("preempted", 20)]))
    for file in (attempts / "2/timeline.json", tmp_path / "train-123abc/metrics.jsonl"):
        spoil(file)
    record = read_run_record(str(tmp_path))
    assert (record.preemptions, record.goodput) == (1, None)
    assert [text.partition(" cannot be read, because ")[0] for text in record.unread] == [
        str(attempts / "2/timeline.json"), str(tmp_path / "train-123abc/metrics.jsonl")
    ]  # fmt: skip


def test_run_record_sums_attempts_and_counts_step_once(tmp_path: Path) -> None:
    write_output(tmp_path, [*ROWS, {**ROWS[3], "step_seconds": 0.25}])
    attempts = tmp_path / "train-123abc" / ".attempts"
    for number, events in enumerate([[event("started", 10), event("preempted", 20)], [event("done", 30)]], 1):
        (attempts / str(number)).mkdir(parents=True)
        (attempts / f"{number}.json").write_text("{}")
        (attempts / str(number) / "timeline.json").write_text(json.dumps(events))
    record = read_run_record(str(tmp_path))
    numbered = [(event.attempt, event.at, event.name) for event in record.events]
    assert numbered == [(1, 10, "started"), (1, 20, "preempted"), (2, 30, "done")]
    assert replace(record, events=()) == RunRecord(2, 1, 0, ("preempted: node-lost",), 20.0, 1.75)
    assert record.goodput == 1.75 / 20 and record_of([], 0, 0.0).goodput is None


def event(name: str, at: float) -> dict[str, Any]:
    return {"event": name, "at": at, "cause": "node-lost"}


def test_damage_hits_largest_file_of_newest_complete_checkpoint(tmp_path: Path) -> None:
    for step, size in ((9, 10), (20, 8), (30, 100)):
        folder = tmp_path / "train-1" / "checkpoints" / f"step-{step}"
        (folder / "d").mkdir(parents=True)
        (folder / "d" / "data").write_text("x" * size)
        if step != 30:  # the writer died before this checkpoint was complete
            (folder / "metadata.json").write_text("{}")
    assert damage_newest_checkpoint(str(tmp_path)) == Damage("step-20/d/data", 20, 9)
    sizes = {path.parts[-3]: path.stat().st_size for path in tmp_path.rglob("data")}
    assert sizes == {"step-9": 10, "step-20": 4, "step-30": 100}
    (tmp_path / "train-1/checkpoints/step-20/metadata.json").unlink()
    assert damage_newest_checkpoint(str(tmp_path)) is None  # a training fails without an undamaged one


# ---- observations of a run


class Recorder:
    """Record the calls of a monitor to its injector."""

    def __init__(self) -> None:
        self.injected: list[tuple[Fault, int | None]] = []
        self.is_outage = False
        self.checkpoint: int | None = 3
        self.refused = 0

    def inject(self, fault: PlannedFault, snapshot: TrainingSnapshot) -> Injection:
        self.injected.append((fault.kind, snapshot.step))
        return Injection(f"did {fault.kind.value}", ("slice-a",))

    def newest_checkpoint(self) -> int | None:
        return self.checkpoint

    def refused_requests(self) -> int:
        return self.refused


def pod(step: int | None, first_pid: int = 1, at: float = 0.0) -> TrainingSnapshot:
    hosts = [TrainingHost("slice-a", rank, rank, first_pid + rank, 0.0, step, at) for rank in range(2)]
    return TrainingSnapshot(tuple(hosts))


def monitored(snapshots: Sequence[TrainingSnapshot], faults: Sequence[PlannedFault], recorder: Recorder) -> RunMonitor:
    monitor = RunMonitor(faults, recorder, recorder, lambda text: None, clock=lambda: 100.0)
    for snapshot in snapshots:
        monitor.observe(snapshot)
    return monitor


def test_fault_injected_after_its_step_and_previous_recovery() -> None:
    recorder = Recorder()
    faults = [PlannedFault(Fault.SLICE, 5, 0), PlannedFault(Fault.HOST, 6, 0)]
    before = [TrainingSnapshot(), pod(None), pod(4), pod(5), pod(7)]
    after = [TrainingSnapshot(), pod(None, 8), pod(4, 8, at=107.0), pod(6, 8)]
    monitor = monitored([*before, *after], faults, recorder)
    assert recorder.injected == [(Fault.SLICE, 5), (Fault.HOST, 6)]
    first, second = monitor.results
    assert (first.recovery_s, first.at_step, first.resumed_at, first.lost_steps) == (7.0, 5, 4, 2)
    assert (first.at, first.checkpoint, first.may_lose, first.victims) == (100.0, 3, 2, ("slice-a",))
    assert (second.recovery_s, second.lost_steps) == (None, None)


def test_heartbeat_link_to_other_process_file_not_read(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path)
    pod_folder = stack.scratch() / "node" / "session_1" / "pod-1"
    pod_folder.mkdir(parents=True)
    reader, writer = os.pipe()
    (pod_folder / "heartbeat.json").symlink_to(f"/proc/{os.getpid()}/fd/{reader}")
    seen: list[TrainingSnapshot] = []
    looking = threading.Thread(target=lambda: seen.append(observe_training(stack)), daemon=True)
    looking.start()
    looking.join(30)
    os.close(writer)
    assert seen == [TrainingSnapshot()]
    os.close(reader)


def test_slowest_host_determines_step_of_pod() -> None:
    ahead, behind = pod(9).hosts
    assert TrainingSnapshot((ahead, replace(behind, step=3))).step == 3
    assert TrainingSnapshot((ahead, replace(behind, step=None))).step is None


def test_outage_recovered_when_ended_and_training_continues() -> None:
    recorder = Recorder()
    monitor = monitored([pod(5)], [PlannedFault(Fault.STORE, 5, 0)], recorder)
    recorder.is_outage = True
    monitor.observe(pod(9))
    [result] = monitor.results
    assert result.recovery_s is None
    recorder.is_outage, recorder.refused = False, 12
    monitor.observe(pod(10, at=120.0))
    [result] = monitor.results
    assert (result.recovery_s, result.refused) == (20.0, 12)


@pytest.mark.parametrize(("succeeded", "recovery_s"), [(True, 0.0), (False, None)])
def test_fault_without_later_step_recovered_if_run_succeeded(succeeded: bool, recovery_s: float | None) -> None:
    monitor = monitored([pod(9), pod(9)], [PlannedFault(Fault.HEAD, 9, 0)], Recorder())
    monitor.finish(succeeded)
    [result] = monitor.results
    assert (result.at_step, result.recovery_s, result.lost_steps) == (9, recovery_s, None)
    never = monitored([pod(5)], [PlannedFault(Fault.HEAD, 10, 0)], Recorder())
    assert never.results == (FaultResult("head", 10, ""),)


# ---- the report

DIFFERENT = OutputVerdict("train-1", 3, ("metrics.jsonl: 1 of 4 rows",), 2.4, 2.5)
RESULTS = (
    FaultResult("slice", 5, "preempted slice-a without notice", 6, 12.3, 4, 20.0, ("slice-a",), 3),
    FaultResult("head", 150, "killed the Ray head", 160, 60.0, 155, 40.0, ("the Ray head",), 154),
)
UNFINISHED = replace(RESULTS[1], recovery_s=None)
FAILED = PodEvent("failed", 5.0, "exception")
EVENTS = (
    PodEvent("started", 10.0),
    PodEvent("preempted", 23.0, "node died", slice_name="slice-a", step=8),
    PodEvent("first_step", 25.0, step=4),
    PodEvent("started", 70.0, attempt=2),
)


def report(**changes: Any) -> DrillReport:
    whole = DrillReport(
        dag="nightly",
        seed=7,
        state="success",
        results=RESULTS,
        record=RunRecord(2, 1, 0, ("preempted: node died",), 100.0, 40.0, EVENTS),
        baseline=RunRecord(1, 0, 0, (), 50.0, 40.0),
        outputs=(OutputVerdict("train-1", 3, (), 2.5, 2.5),),
    )
    return replace(whole, **changes)


def test_report_has_every_fault_output_and_figure() -> None:
    text = report().text()
    assert text.startswith("Drill of nightly, seed 7: passed\n")
    for part in (
        "slice  6        12.3 s           3           preempted slice-a without notice",
        "head   160      60.0 s           6           killed the Ray head",
        "2 attempts, 1 preemptions, 0 failures",
        "goodput 40%; baseline 50.0 s, goodput 80%",
        "train-1: equal (3 files, final loss 2.5)",
    ):
        assert part in text
    assert "DIFFERENT" in report(outputs=(DIFFERENT,)).text()
    written = json.loads(json.dumps(report().to_json()))
    assert (written["passed"], written["problems"], written["faults"][0]["lost_steps"]) == (True, [], 3)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"state": "failed"}, "The run ended as failed."),
        ({"outputs": ()}, "There are no outputs to compare."),
        ({"outputs": (DIFFERENT,)}, "The output train-1 is different."),
        ({"leaks": ("slice slice-x",)}, "Left behind: slice slice-x."),
        ({"record": replace(report().record, unread=("x cannot be read.",))}, "x cannot be read."),
        (
            {"results": (*RESULTS, FaultResult("store", 180, ""))},
            "The fault store did not come: the run had ended before its step.",
        ),
        ({"results": (RESULTS[0], UNFINISHED)}, "The fault head was not followed by any training."),
        ({"results": (RESULTS[0], replace(RESULTS[1], victims=()))}, "The fault head found nothing to hit."),
        ({"baseline": record_of([FAILED], 1, 0.0)}, "In the baseline run, a pod failed: exception."),
    ],
)
def test_failed_drill_reports_why(changes: dict[str, Any], problem: str) -> None:
    failed = report(**changes)
    assert failed.problems == (problem,)
    assert not failed.has_passed
    assert failed.text().startswith("Drill of nightly, seed 7: NOT passed\n") and failed.text().endswith(f"{problem}\n")


class StatesRun:
    """A run that returns the next state of a list, and raises it if it is an exception."""

    def __init__(self, *states: str | Exception) -> None:
        self._states = iter(states)

    def state(self) -> str:
        state = next(self._states)
        if isinstance(state, Exception):
            raise state
        return state


@pytest.mark.slow
def test_run_poll_retries_busy_airflow_until_component_dies() -> None:
    dead = LocalAirflowError("The Airflow scheduler ended with exit code 1")
    with poll_in_thread(StatesRun(AirflowApiError("busy"), "running", dead)) as state:
        until(lambda: state() == "running")
        with pytest.raises(LocalAirflowError, match="The Airflow scheduler ended"):
            until(lambda: state() != "running")
