"""The driver finds the host that stalls a pod from the heartbeats of the processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import until
from tradewind.machine import boot_time
from tradewind.runtime.pods.on_host import heartbeat
from tradewind.runtime.pods.on_host.heartbeat import HEARTBEAT_VARIABLE, Beat, find_stalled_host, read_beat

NOW = 10_000.0


def at(step, step_s=0.0, alive_s=0.5):
    return Beat(NOW - alive_s, step, None if step is None else NOW - step_s)


def expected(waited_s):
    """Beat of a process that has announced steps and made none."""
    return Beat(NOW - 0.5, None, NOW - waited_s)


@pytest.mark.parametrize(
    ("beats", "stalled"),
    [
        ([at(10), at(11, step_s=1100)], None),
        ([at(10), at(10, alive_s=61)], (1, 61)),  # frozen
        ([at(10, alive_s=70), at(10, alive_s=90)], (1, 90)),
        ([at(11, step_s=1300), at(10, step_s=1310), at(11, step_s=1300)], (1, 1310)),  # the lowest step
        ([at(1, step_s=1300), at(None)], (1, 1300)),
        ([at(10, step_s=1300), at(10, step_s=1301)], (1, 1301)),  # equal steps: the longest stall
        ([expected(1300), expected(1300)], (0, 1300)),
        ([expected(1300), at(1, step_s=5)], (0, 1300)),
        ([expected(1100), at(None)], None),
        ([at(None), at(None)], None),  # a function without steps cannot stall
        ([None, None], None),
        ([None, at(10, alive_s=61)], (1, 61)),
    ],
)
def test_stalled_host_is_named(beats, stalled):
    assert find_stalled_host(dict(enumerate(beats)), NOW, frozen_s=60, stall_s=1200) == stalled


def test_beats_are_converted_to_one_clock():
    beat = Beat(alive_at=5.0, step=3, step_at=4.0).on_clock(host_now=6.0, now=NOW)
    assert beat == Beat(NOW - 1, 3, NOW - 2)
    assert Beat(5.0).on_clock(6.0, NOW).step_at is None


TRAIN = """
import sys
import numpy as np
from tradewind.runtime.pods.on_host.heartbeat import beat, expect_steps, saved, start_heartbeat
start_heartbeat()
print("alive", flush=True)
for line in sys.stdin:
    what, _, step = line.partition(" ")
    {"expect": expect_steps, "beat": beat, "saved": saved}[what.strip()](*map(np.int64, step.split()))
    print("beaten", flush=True)
"""


@pytest.fixture
def training(tmp_path):
    """A process that sends heartbeats on command, with steps of NumPy, and its heartbeat file."""
    path = tmp_path / "heartbeat"
    env = {**os.environ, HEARTBEAT_VARIABLE: str(path)}
    with subprocess.Popen(
        [sys.executable, "-c", TRAIN], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "alive\n"
        yield process, str(path)
        process.stdin.close()


def send(process, what):
    process.stdin.write(f"{what}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "beaten\n"


@pytest.mark.slow
def test_process_reports_heartbeat_and_current_step(training):
    process, path = training
    until(lambda: read_beat(path) is not None)
    first = read_beat(path)
    assert first.step is None and first.step_at is None
    send(process, "beat 7")
    until(lambda: read_beat(path).step == 7)
    until(lambda: read_beat(path).alive_at > first.alive_at + 0.5)
    last = read_beat(path)
    assert first.alive_at <= last.step_at <= last.alive_at <= boot_time()


def test_process_reports_expected_steps_and_saved_step(training):
    process, path = training
    send(process, "expect")
    expected = read_beat(path)
    assert expected.step is None and expected.step_at is not None
    send(process, "beat 7")
    send(process, "expect")
    send(process, "saved 5")
    last = read_beat(path)
    assert (last.step, last.saved) == (7, 5) and last.step_at > expected.step_at


def test_beat_writes_nothing_outside_pod(monkeypatch, tmp_path):
    monkeypatch.delenv(HEARTBEAT_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    heartbeat.beat(1)
    assert list(tmp_path.iterdir()) == []


def test_partly_written_beat_is_none(training, tmp_path):
    process, path = training
    send(process, "beat 7")
    half = tmp_path / "half"
    half.write_text(Path(path).read_text().replace('"alive_at": ', '"alive_at": 1', 1))
    assert read_beat(str(half)) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"alive_at": 1}'])
def test_invalid_heartbeat_file_is_none(tmp_path, text):
    (tmp_path / "heartbeat").write_text(text)
    assert read_beat(str(tmp_path / "heartbeat")) is None
    assert read_beat(str(tmp_path / "absent")) is None
