"""Attempts as intervals and events on a time axis."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tradewind.records.attempts import (
    Attempt,
    AttemptError,
    AttemptOutcome,
    attempt_folder,
    attempt_path,
    write_attempt,
)
from tradewind.records.lease import Lease, Phase
from tradewind.records.parsing import RecordFormatError
from tradewind.records.record import Record
from tradewind.runtime.pods.timeline import TimelineEvent, parse_timeline, timeline_text
from tradewind.storage.files import write_text
from tradewind.tasks import attempt_history
from tradewind.tasks.attempt_history import (
    MAX_ATTEMPTS,
    AttemptReport,
    attempt_events,
    attempt_phases,
    read_attempt_history,
    report_attempt,
)
from tradewind.tasks.pod_summary import format_summary

START = 1_790_000_000.0
CLAIM = "2026-09-21T14:13:20+00:00"
"""``START`` in ISO 8601."""
SPEC = {"resources": {"kind": "tpu_slice", "slice_type": "v4-16", "num_slices": 1}}


def event(name: str, after_s: float, **fields: Any) -> TimelineEvent:
    return TimelineEvent(name, START + after_s, **fields)


ROUGH = [
    event("waiting", 10),
    event("reserved", 40, slices=("a",), num_slices=1),
    event("started", 50, slices=("a",), num_slices=1),
    event("first_step", 80, step=0),
    event("waiting", 170),
    event("reserved", 178, slices=("b",), num_slices=1),
    event("preempted", 180, cause="node died", sentence="Host 1 was lost.", step=70, checkpoint_step=40),
    event("started", 190, slices=("b",), num_slices=1, restarts=1),
    event("first_step", 200, step=41),
    event("failed", 260, cause="exception", sentence="Host 0 raised ValueError.", step=81, checkpoint_step=80),
    event("started", 265, slices=("b",), num_slices=1, restarts=2),
    event("first_step", 270, step=81),
    event("done", 300, step=99),
]

QUEUED = [("waiting", 10, 40), ("reserved", 40, 50), ("starting", 50, 80)]


def attempt(number: int = 1, **fields: Any) -> Attempt:
    by = {"run": "manual__1", "dag": "train"}
    return Attempt(number, f"job-{number}", "cluster", by, SPEC, started_at=CLAIM, **fields)


def spans(events: list[TimelineEvent], claimed: float | None, until: float, *, active: bool = False) -> list[Any]:
    return [
        (each.kind.value, each.started_at - START, None if each.ended_at is None else each.ended_at - START)
        for each in attempt_phases(
            events, None if claimed is None else START + claimed, START + until, is_active=active
        )
    ]


def test_phases_cover_attempt_without_gap_or_overlap() -> None:
    found = spans(ROUGH, 0, 310)
    assert found == [
        ("waiting", 0, 40), ("reserved", 40, 50), ("starting", 50, 80), ("running", 80, 170), ("waiting", 170, 178),
        ("reserved", 178, 190), ("starting", 190, 200), ("running", 200, 260), ("reserved", 260, 265),
        ("starting", 265, 270), ("running", 270, 300), ("committing", 300, 310),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "events, claimed, active, expected",
    [
        ([], 0, False, [("running", 0, 99)]),
        ([], 0, True, [("running", 0, None)]),
        ([], None, False, []),
        (ROUGH[:1], 0, True, [("waiting", 0, None)]),
        (ROUGH[:4], None, True, [*QUEUED, ("running", 80, None)]),
        ([*ROUGH[2:4], ROUGH[6]], None, True, [("starting", 50, 80), ("running", 80, 180), ("waiting", 180, None)]),
        ([event("unheard_of", 5)], 0, False, [("waiting", 0, 99)]),
    ],
)  # fmt: skip
def test_phases_of_unfinished_attempts(events: Any, claimed: Any, active: bool, expected: list[Any]) -> None:
    assert spans(events, claimed, 99, active=active) == expected


def test_each_end_of_a_pod_has_its_cost() -> None:
    ends = [each for each in attempt_events(ROUGH) if each.kind.value != "restarted"]
    assert [(each.kind.value, each.lost_steps, each.down_s) for each in ends] == [
        ("preempted", 30, 20.0),
        ("failed", 1, 10.0),
    ]
    assert ends[0].reason == "Host 1 was lost." and ends[0].cause == "node died"
    [last] = attempt_events([event("failed", 5)])
    assert last.down_s is None


def test_report_sums_what_the_attempt_cost() -> None:
    ended = attempt(outcome=AttemptOutcome.SUCCEEDED, ended_at="2026-09-21T14:18:30+00:00")
    report = report_attempt(ended, ROUGH, "/out", is_active=False, now=START + 9999)
    cost = report.cost
    assert cost is not None
    assert (cost.wall_s, cost.waiting_s, cost.down_s, cost.lost_steps) == (310, 38, 30, 31)
    assert cost.resources == "v4-16" and cost.slice_hours == pytest.approx((310 - 48 - 10) / 3600)
    assert (report.preemptions, report.failures, report.restarts) == (1, 1, 2)
    assert report.events[-1].kind.value == "committed" and report.reason is None
    assert report.producer == "run manual__1 of train"


def test_seconds_of_waits_and_restarts_count_once_as_in_the_log(tmp_path: Path) -> None:
    names = {
        20: "waiting", 40: "reserved", 50: "started", 60: "first_step", 100: "preempted", 101: "waiting",
        161: "reserved", 170: "started", 180: "failed", 185: "started", 200: "first_step", 300: "done",
    }  # fmt: skip
    events = [event(name, at) for at, name in names.items()]
    cost = report_attempt(attempt(), events, "/out", is_active=False, now=START + 300).cost
    assert cost is not None and (cost.waiting_s, cost.down_s) == (20 + 60, 100 - 60)
    assert "waited 80 s" in (format_summary(events, str(tmp_path)) or "")


def test_reason_is_own_error_else_last_end_of_pod() -> None:
    stopped = attempt(outcome=AttemptOutcome.LOST, ended_at=CLAIM)
    assert report_attempt(stopped, ROUGH[:7], "/out", is_active=False, now=START).reason == "Host 1 was lost."
    failed = replace(
        stopped, outcome=AttemptOutcome.FAILED, error=AttemptError("ValueError", "no such column", "trace")
    )
    report = report_attempt(failed, [], "/out", is_active=False, now=START)
    assert (report.reason, report.traceback) == ("ValueError: no such column", "trace")


def history(output: Path, lease: Lease | None = None, now: float = START + 500) -> tuple[AttemptReport, ...]:
    return read_attempt_history(str(output), Record(lease=lease), now).attempts


def test_history_reads_files_and_names_those_it_cannot(tmp_path: Path) -> None:
    output = str(tmp_path)
    write_attempt(output, attempt(1, outcome=AttemptOutcome.LOST, ended_at="2026-09-21T14:15:00+00:00"))
    write_attempt(output, attempt(2))
    write_text(f"{attempt_folder(output, 2)}/timeline.json", "half a f")
    write_text(f"{output}/.attempts/3.json", "{")
    write_attempt(output, replace(attempt(4), started_at="2026-09-21T14:16:40+00:00"))
    write_text(f"{attempt_folder(output, 4)}/timeline.json", timeline_text(ROUGH[:4]))
    saved = {"step": 40, "timestamp": "2026-09-21T14:17:00", "is_temporary": False}
    write_text(f"{output}/checkpoints/step-40/metadata.json", json.dumps(saved))
    write_text(f"{output}/checkpoints/step-60/metadata.json", '{"step": "x"}')
    rows = [{"step": step, "time": START + 60 + step, "step_seconds": 1.0} for step in range(100)]
    write_text(f"{output}/metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    lease = Lease("w", START, Phase.RUNNING, attempt=4)
    newest, broken, unknown, first = history(tmp_path, lease)
    assert newest.is_active and newest.phases[-1].ended_at is None
    assert newest.goodput == pytest.approx(100 / 450)
    assert [(each.kind.value, each.step) for each in newest.events] == [("saved", 40)]
    assert broken.problem is not None and "3.json cannot be read" in broken.problem
    assert unknown.problem is not None and "timeline.json cannot be read" in unknown.problem
    assert first.outcome is AttemptOutcome.LOST and first.cost is not None and first.cost.wall_s == 100


def test_history_is_bounded_with_the_newest_first(tmp_path: Path) -> None:
    for number in range(1, MAX_ATTEMPTS + 4):
        write_attempt(str(tmp_path), attempt(number))
    found = read_attempt_history(str(tmp_path), Record(), START)
    assert [each.number for each in found.attempts] == list(range(MAX_ATTEMPTS + 3, 3, -1))
    assert found.left_out == 3
    assert history(tmp_path / "nothing") == ()


def test_long_files_of_attempts_are_read_within_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 13):
        write_attempt(str(tmp_path), attempt(number))
    size = Path(attempt_path(str(tmp_path), 12)).stat().st_size
    monkeypatch.setattr(attempt_history, "_MAX_ATTEMPT_BYTES", 5 * size)
    problems = [each.problem for each in history(tmp_path)]
    assert problems[:4] == [None] * 4 and all("has more than" in (each or "") for each in problems[8:])
    for number in range(8, 13):
        write_text(f"{attempt_folder(str(tmp_path), number)}/timeline.json", "{}" + " " * number)
    monkeypatch.setattr(attempt_history, "_MAX_ATTEMPT_BYTES", 13 * size)
    monkeypatch.setattr(attempt_history, "_MAX_EVENTS", 4)
    problems = [each.problem for each in history(tmp_path)]
    assert all("cannot be read" in (each or "") for each in problems[:4]) and "newer attempts" in (problems[4] or "")


def test_timeline_of_too_many_values_is_not_parsed() -> None:
    with pytest.raises(RecordFormatError, match="more than 800,000 values"):
        parse_timeline("[" + "[]," * 500_000 + "0]")


def test_long_hostile_timeline_gives_short_report(tmp_path: Path) -> None:
    events = [event(("started", "failed")[at % 2], at, sentence="<" * 50) for at in range(20_000)]
    write_attempt(str(tmp_path), attempt(1))
    write_text(f"{attempt_folder(str(tmp_path), 1)}/timeline.json", timeline_text(events))
    [report] = history(tmp_path)
    assert len(report.events) <= 400 and len(report.phases) <= 400 and report.left_out > 30_000
