"""Reasons why a step runs, waits or is reused; one batch reads the errors of all failed steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tradewind.plans.reasons import AttemptSummary, explain_steps, read_attempt_summaries, state_reason
from tradewind.records.attempts import Attempt, AttemptError, AttemptOutcome, attempt_path, write_attempt
from tradewind.records.info_files import write_step_info
from tradewind.records.lease import Lease, Phase
from tradewind.records.record import Record, Status
from tradewind.steps import ExecutorStep, ResolvedStep, resolve, versioned
from tradewind.storage import Roots
from tradewind.storage.files import write_text

NOW = 1_800_000_000.0
EVERYWHERE = Roots(("/", "memory://"))
BY = {"dag": "nightly", "run": "r1", "task": "train", "map_index": -1, "try": 1}


def make(prefix: str | Path, *names: str, rate: float = 0.1) -> tuple[ResolvedStep, ...]:
    return resolve([ExecutorStep(name, None, {"rate": versioned(rate)}) for name in names], str(prefix)).steps


def lease(phase: Phase | None, **fields: Any) -> Lease:
    return Lease("owner", NOW, phase, **{"attempt": 2, "job": "job-7", "by": BY, **fields})


(STEP,) = make("/p", "train")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (Record(), "never ran"),
        (Record(Status.SUCCESS, has_output=True), "finished before"),
        (Record(None, lease(Phase.COMMITTED), has_output=True), "finished before by run r1 of nightly"),
        (Record(Status.SUCCESS), "ran, output gone"),
        (Record(None, lease(Phase.COMMITTED)), "ran, output gone"),
        (Record(Status.FAILED), "failed before: ValueError: no"),
        (Record(Status.DEP_FAILED), "an input failed before"),
        (Record(None, lease(Phase.FAILED)), "failed before: ValueError: no"),
        (Record(None, lease(Phase.STOPPED)), "stopped before"),
        (
            Record(None, lease(Phase.STOPPED, stop_requested={"dag": "d", "run": "r2", "try": 3})),
            "stopped before by run r2 of d",
        ),
        (Record(None, lease(Phase.RUNNING), lease_age_s=1000), "started before, then its lease expired"),
        (Record(Status.RUNNING), "started before, then its lease expired"),
        (Record(None, lease(Phase.RUNNING)), "in progress in run r1 of nightly since 8:00 on job job-7"),
        (Record(None, lease(Phase.CLAIMED, job="", by={})), "in progress since 8:00"),
        (
            Record(None, lease(Phase.CLAIMED, job="", by={"hook": "mine", "try": 2})),
            "in progress in hook mine since 8:00",
        ),
        (Record(Status.RUNNING, Lease("host-1", NOW)), "in progress in Marin's executor, worker host-1"),
    ],
)
def test_reason_describes_the_state(record: Record, reason: str) -> None:
    assert state_reason(STEP, record, {STEP.output_path: "ValueError: no"}.get, since="8:00") == reason


# ---- reads


def attempt(number: int, error: AttemptError | None = None, started_at: str = "") -> Attempt:
    made = Attempt(number, "job", "cluster", {}, {}, started_at=started_at)
    return made.ended(AttemptOutcome.FAILED, error) if error else made


def test_errors_of_all_failed_steps_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = make(f"memory://{tmp_path.name}", "a", "b", "c", "d")
    errors = [
        AttemptError("ValueError", "\n  bad rate\nsecond line", "Traceback"),
        AttemptError("package.OutOfMemoryError", ""),
        AttemptError("E", "x" * 1000),
    ]
    for step, error in zip(steps, errors, strict=False):
        write_attempt(step.output_path, attempt(2, error))
    reads: list[int] = []
    cat: Callable[..., Any] = MemoryFileSystem.cat_ranges

    def record(self: MemoryFileSystem, paths: Any, *args: Any, **kwargs: Any) -> Any:
        reads.append(len(paths))
        return cat(self, paths, *args, **kwargs)

    monkeypatch.setattr(MemoryFileSystem, "cat_ranges", record)
    explained = explain_steps([(step, Record(None, lease(Phase.FAILED))) for step in steps], now=NOW, roots=EVERYWHERE)
    assert reads == [4]
    assert [explained[step.output_path] for step in (*steps[:2], steps[3])] == [
        "failed before: ValueError: bad rate",
        "failed before: package.OutOfMemoryError",
        "failed before",
    ]
    assert len(explained[steps[2].output_path]) < 200


def test_start_of_running_attempt_is_read(tmp_path: Path) -> None:
    (step,) = make(tmp_path, "a")
    write_attempt(step.output_path, attempt(2, started_at="2027-01-15T09:00:30+01:00"))
    explained = explain_steps([(step, Record(None, lease(Phase.CLAIMED)))], now=NOW, roots=EVERYWHERE)
    assert explained == {step.output_path: "in progress in run r1 of nightly since 2027-01-15 08:00 UTC on job job-7"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"error": 3}', '{"started_at": "yesterday"}', '{"error": {}}'])
def test_invalid_attempt_file_has_an_empty_summary(tmp_path: Path, text: str) -> None:
    (step,) = make(tmp_path, "a")
    write_text(attempt_path(step.output_path, 2), text)
    assert read_attempt_summaries({step.output_path: Record(None, lease(Phase.FAILED))}) == {
        step.output_path: AttemptSummary()
    }


def test_every_unfinished_step_has_a_reason(tmp_path: Path) -> None:
    (old,) = make(tmp_path, "a", rate=0.5)
    write_step_info(old, "f")
    new, failed, done = make(tmp_path, "a", "b", "c")
    records = [(new, Record()), (failed, Record(Status.FAILED)), (done, Record(Status.SUCCESS, has_output=True))]
    assert explain_steps(records, now=NOW, roots=EVERYWHERE) == {
        new.output_path: f"differs from version `{old.hash}`: config.rate 0.5 → 0.1",
        failed.output_path: "failed before",
    }


def test_unavailable_store_leaves_the_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("the disk is gone")

    steps = make(f"memory://{tmp_path.name}", "a", "b")
    monkeypatch.setattr(MemoryFileSystem, "cat_file", fail)
    monkeypatch.setattr(MemoryFileSystem, "ls", fail)
    records = [(steps[0], Record(None, lease(Phase.FAILED))), (steps[1], Record())]
    explained = explain_steps(records, now=NOW, roots=EVERYWHERE)
    assert list(explained.values()) == ["failed before", "never ran"]
    assert caplog.text.count("the disk is gone") == 2
