"""Recovery time: computed from marks and timelines."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.pods.driver import OURS, PEER
from benchmarks.pods.function import train
from benchmarks.pods.measurements import Recovery, median_step, read_marks, recovery_of
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


@pytest.mark.long
@pytest.mark.slow
def test_benchmark_pod_function_resumes_from_checkpoint(tmp_path: Path) -> None:
    for _ in range(2):
        train(str(tmp_path), 2.5, rank=0)
    marks = read_marks(tmp_path)
    loaded = [mark["step"] for mark in marks if mark["event"] == "loaded"]
    assert loaded[0] == 0 < loaded[1]
    assert 0 < median_step(marks, 0.0, time.time()) < 5
