"""Recovery time: computed from marks and timelines, and compared with the peer's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.harness import Goal
from benchmarks.pods.driver import OURS, PEER
from benchmarks.pods.function import train
from benchmarks.pods.measurements import Recovery, median_step, read_marks, recovery_of
from benchmarks.pods.overhead import Pair, overhead_goal
from benchmarks.pods.recovery import Kill, recovery_goals, recovery_table
from tradewind.runtime.pods.timeline import TimelineEvent


def mark(pid: int, event: str, at: float, step: int | None = None) -> dict[str, object]:
    return {"rank": pid % 2, "pid": pid, "event": event, "at": at, "step": step}


KILLED_AT_100 = [
    *(mark(1, "saved", at, step) for at, step in ((94.0, 35), (95.0, 38), (97.0, 40))),
    *(mark(pid, "step", 97.0 + step / 10 + pid / 10, 41 + step) for step in range(10) for pid in (1, 2)),
    mark(2, "step", 99.5, 51),
    *(mark(pid, event, at) for pid in (3, 4) for event, at in (("begun", 107.0), ("loaded", 109.0))),
    mark(3, "step", 110.0, 41),
    mark(4, "step", 110.5, 42),
]


def test_recovery_is_split_by_function_marks_and_pod_timeline() -> None:
    events = [TimelineEvent("reserved", at) for at in (10.0, 103.0)] + [TimelineEvent("preempted", 102.5, end_s=0.5)]
    ours = recovery_of(OURS, 100.0, KILLED_AT_100, events)
    assert ours == Recovery(
        "ours", 10.5, 2.0, 1.5, 10, pytest.approx(2.2), 2.0, detect=2.0, end=0.5, reserve=0.5, start=4.0
    )
    peer = recovery_of(PEER, 100.0, KILLED_AT_100)
    assert peer is not None and (peer.total, peer.detect) == (10.5, None)
    assert recovery_of(PEER, 100.0, KILLED_AT_100[:-1]) is None, "one host does not train yet"


def test_pod_goals_use_detection_peer_and_step_time() -> None:
    parts = {"detect": 1.5, "end": 1.0, "reserve": 0.0, "start": 6.5}
    ours = Recovery(OURS, 12.0, 2.0, 1.0, lost=3, lost_s=1.1, interval_s=1.05, **parts)
    peer = Recovery(PEER, 20.0, 2.0, 1.0, lost=5, lost_s=0.7, interval_s=1.0)
    kills = [Kill(one.runner, one) for one in (ours, peer)]
    assert list(recovery_goals(kills)) == [
        Goal("detection of a lost slice", "<= 3.00 s", "1.50 s", True),
        Goal("steps lost beside the checkpoint interval", "<= 1.05 s", "1.10 s", False),
        Goal("whole recovery beside JaxTrainer", "<= 0.50 times", "0.60 times", False),
    ]
    overhead = overhead_goal([Pair(0.1005, 0.1), Pair(0.2, 0.1), Pair(0.1001, 0.1)])
    assert overhead == Goal("overhead of the runner", "<= +1.00%", "+0.50%", True)
    table = recovery_table([*kills, Kill(PEER, None)]).rows
    assert list(table[1]) == ["JaxTrainer", "2", "1", "20.00 s", "0.60", *["-"] * 4, "2.00 s", "1.00 s", "<= 5"]


@pytest.mark.long
@pytest.mark.slow
def test_benchmark_pod_function_resumes_from_checkpoint(tmp_path: Path) -> None:
    for _ in range(2):
        train(str(tmp_path), 2.5, rank=0)
    marks = read_marks(tmp_path)
    loaded = [mark["step"] for mark in marks if mark["event"] == "loaded"]
    assert loaded[0] == 0 < loaded[1]
    assert 0 < median_step(marks, 0.0, time.time()) < 5
