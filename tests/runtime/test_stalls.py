"""Stalls: what the records of a running attempt show, and the decision about it."""

from __future__ import annotations

import datetime
import json
import os
import posixpath
import time
from pathlib import Path
from typing import Any

import pytest

from tradewind.datasets.execution import SCRATCH_FOLDER
from tradewind.records.attempts import Attempt, attempt_folder, write_attempt
from tradewind.records.lease import HEARTBEAT_S, Lease, Phase, lease_path
from tradewind.runtime.pods.timeline import TIMELINE_FILE, TimelineEvent, timeline_text
from tradewind.runtime.stalls import (
    PROGRESS_FILE,
    AttemptProgress,
    StallLimits,
    decide_stall,
    last_shard_at,
    last_step_at,
    pod_state,
    read_stall,
)
from tradewind.storage.swap import write_if

NOW = 1_800_000_000.0
MINUTE = 60.0


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (AttemptProgress(NOW - 9e4), None),  # shows no progress at all
        (AttemptProgress(NOW - 9e4, is_waiting=True, is_training=True, step_at=NOW - 8e4), None),
        (AttemptProgress(NOW - 9e4, is_training=True, step_at=NOW - 15 * MINUTE), None),
        (AttemptProgress(NOW - 9e4, is_training=True, step_at=NOW - 16 * MINUTE), "no step for 16 min (limit 15 min)"),
        (AttemptProgress(NOW - 9e4, NOW - 5 * MINUTE, is_training=True, step_at=NOW - 8e4), None),  # restarted
        (AttemptProgress(NOW - 9e4, NOW - 20 * MINUTE, is_training=True), "no step for 20 min (limit 15 min)"),
        (AttemptProgress(NOW - 9e4, shard_at=NOW - 44 * MINUTE), None),
        (AttemptProgress(NOW - 9e4, shard_at=NOW - 46 * MINUTE), "no shard for 46 min (limit 45 min)"),
        (AttemptProgress(NOW - 5 * MINUTE, shard_at=NOW - 46 * MINUTE), None),  # a shard of an earlier attempt
        (AttemptProgress(NOW - 9e4, is_training=True, step_at=NOW - 1, shard_at=NOW - 8e4), None),  # steps decide
    ],
)
def test_stall_is_decided_by_last_progress(progress: AttemptProgress, expected: str | None) -> None:
    stall = decide_stall(progress, NOW)
    assert (str(stall) if stall else None) == expected


def test_limits_are_parameters() -> None:
    training = AttemptProgress(NOW - 9e4, is_training=True, step_at=NOW - 16 * MINUTE)
    assert decide_stall(training, NOW, StallLimits(step_s=17 * MINUTE)) is None
    stall = decide_stall(AttemptProgress(NOW - 9e4, shard_at=NOW - 90), NOW, StallLimits(shard_s=60))
    assert stall is not None and (stall.what, stall.since, stall.seconds) == ("shard", NOW - 90, 90)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], (None, False)),
        (["waiting"], (None, True)),
        (["waiting", "reserved"], (None, True)),
        (["waiting", "reserved", "started"], (2.0, False)),
        (["waiting", "reserved", "started", "first_step"], (2.0, False)),
        (["started", "first_step", "preempted"], (None, True)),
        (["started", "preempted", "waiting", "reserved", "started"], (4.0, False)),
    ],
)
def test_pod_state_follows_last_start(names: list[str], expected: tuple[float | None, bool]) -> None:
    assert pod_state([TimelineEvent(name, float(at)) for at, name in enumerate(names)]) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ('{"step": 1, "time": 10.5}\n{"step": 2, "time": 20.5}\n', 20.5),
        ('{"step": 1, "time": 10.5}\n{"step": 2, "ti', 10.5),
        ('"time": 5}\n{"step": 1, "time": 10.5}\n{"step": 2, "time": "x"}\n[1]\n', 10.5),
        ('{"step": 1, "time": 1e400}\n', None),
    ],
)
def test_last_step_skips_damaged_rows(text: str, expected: float | None) -> None:
    assert last_step_at(text) == expected


def stage(done: int, **more: Any) -> dict[str, Any]:
    return {"shards": 10, "done": done, "failed": 0, "idle_s": 30.0} | more


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        ({"stages": [stage(4)], "total_stages": 2, "problem": None}, 70.0),
        ({"stages": [stage(10), stage(4, idle_s=1)], "total_stages": 2}, 99.0),
        ({"stages": [stage(10)], "total_stages": 2}, 70.0),  # the next stage has still to begin
        ({"stages": [stage(9, failed=1)], "total_stages": 1}, None),  # it is over
        ({"stages": [stage(4)], "total_stages": 1, "problem": "a shard failed"}, None),
        ({"stages": [{"shards": 10, "done": 4, "failed": 0}], "total_stages": 1}, None),  # of an earlier version
        ({"stages": [], "total_stages": 1}, None),
        ({"stages": "x"}, None),
        ({"stages": [stage(4, idle_s="x")], "total_stages": 1}, None),
        ({"stages": [stage(4)], "total_stages": "x"}, None),
    ],
)
def test_last_shard_is_that_of_running_stage(progress: dict[str, Any], expected: float | None) -> None:
    assert last_shard_at(progress, 100.0) == expected


def running_attempt(
    folder: Path, phase: Phase = Phase.RUNNING, started_at: float = 0.0, heartbeat_s: float = HEARTBEAT_S
) -> str:
    """Return the output of an attempt, written just now, that started at a time."""
    path = str(folder / "train-abc")
    lease = Lease("owner", 0.0, phase, attempt=1, job="job", heartbeat_s=heartbeat_s)
    write_if(lease_path(path), lease.to_json(), None)
    moment = datetime.datetime.fromtimestamp(started_at, datetime.UTC).isoformat()
    write_attempt(path, Attempt(1, "job", "here", {}, {}, started_at=moment))
    return path


def put(output: str, name: str, text: str) -> None:
    file = Path(output, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_training_without_new_rows_is_stalled(tmp_path: Path) -> None:
    now = time.time()
    output = running_attempt(tmp_path, started_at=now - 9e4)
    assert read_stall(output) is None
    rows = "".join(json.dumps({"step": step, "time": now - 5000 + step}) + "\n" for step in range(4000))
    put(output, "metrics.jsonl", rows)  # longer than what is read of it
    stall = read_stall(output, now=now)
    assert stall is not None and (stall.what, round(stall.seconds)) == ("step", 1001)
    events = [TimelineEvent("started", now - 9e4), TimelineEvent("preempted", now - 900), TimelineEvent("waiting", now)]
    put(output, posixpath.relpath(attempt_folder(output, 1), output) + f"/{TIMELINE_FILE}", timeline_text(events))
    assert read_stall(output, now=now) is None


def test_rows_of_earlier_attempt_are_no_stall_of_this(tmp_path: Path) -> None:
    now = time.time()
    output = running_attempt(tmp_path, started_at=now - 2000)
    put(output, "metrics.jsonl", json.dumps({"step": 1, "time": now - 5000}) + "\n")
    assert read_stall(output, now=now) is None


def test_pipeline_without_new_shards_is_stalled(tmp_path: Path) -> None:
    assert posixpath.join(SCRATCH_FOLDER, "progress.json") == PROGRESS_FILE
    now = time.time()
    output = running_attempt(tmp_path, started_at=now - 9e4)
    put(output, PROGRESS_FILE, json.dumps({"stages": [stage(4, idle_s=2800)], "total_stages": 1}))
    stall = read_stall(output)
    assert stall is not None and stall.what == "shard" and 2800 <= stall.seconds < 2900
    put(output, PROGRESS_FILE, "{")
    assert read_stall(output) is None


@pytest.mark.parametrize("phase", [Phase.CLAIMED, Phase.COMMITTED, Phase.FAILED])
def test_only_running_attempt_is_stalled(tmp_path: Path, phase: Phase) -> None:
    output = running_attempt(tmp_path, phase)
    put(output, "metrics.jsonl", json.dumps({"step": 1, "time": 5}) + "\n")
    assert read_stall(output) is None


def test_pipe_instead_of_metrics_is_not_opened(tmp_path: Path) -> None:
    output = running_attempt(tmp_path)
    os.mkfifo(Path(output, "metrics.jsonl"))
    assert read_stall(output) is None
