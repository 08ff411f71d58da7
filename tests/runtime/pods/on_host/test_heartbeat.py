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


def silent(*beats):
    return find_stalled_host(dict(enumerate(beats)), NOW, frozen_s=60, stall_s=1200)


def at(step, step_s=0.0, alive_s=0.5):
    return Beat(NOW - alive_s, step, None if step is None else NOW - step_s)


def test_a_pod_that_makes_steps_is_well():
    assert silent(at(10), at(11, step_s=1100)) is None


def test_a_process_that_gives_no_sign_of_life_is_frozen():
    assert silent(at(10), at(10, alive_s=61)) == (1, 61)
    assert silent(at(10, alive_s=70), at(10, alive_s=90)) == (1, 90)


def test_of_a_stalled_pod_the_host_with_the_lowest_step_is_named():
    assert silent(at(11, step_s=1300), at(10, step_s=1310), at(11, step_s=1300)) == (1, 1310)


def test_a_host_that_never_made_a_step_holds_up_those_that_did():
    assert silent(at(1, step_s=1300), at(None)) == (1, 1300)


def test_equal_steps_name_the_host_that_stood_still_longest():
    assert silent(at(10, step_s=1300), at(10, step_s=1301)) == (1, 1301)


def test_missing_expected_first_step_is_stall():
    waits = Beat(NOW - 0.5, None, NOW - 1300)
    assert silent(waits, waits) == (0, 1300)
    assert silent(waits, at(1, step_s=5)) == (0, 1300)
    assert silent(Beat(NOW - 0.5, None, NOW - 1100), at(None)) is None


def test_a_function_that_counts_no_steps_cannot_stall():
    assert silent(at(None), at(None)) is None


def test_a_process_that_says_nothing_of_itself_is_not_judged():
    assert silent(None, None) is None
    assert silent(None, at(10, alive_s=61)) == (1, 61)


def test_hosts_whose_clocks_differ_are_compared_on_one():
    beat = Beat(alive_at=5.0, step=3, step_at=4.0).on_clock(host_now=6.0, now=NOW)
    assert beat == Beat(NOW - 1, 3, NOW - 2)
    assert Beat(5.0).on_clock(6.0, NOW).step_at is None


TRAIN = """
import sys, time
from tradewind.runtime.pods.on_host.heartbeat import beat, expect_steps, saved, start_heartbeat
start_heartbeat()
print("alive", flush=True)
for line in sys.stdin:
    what, _, step = line.partition(" ")
    {"expect": expect_steps, "beat": beat, "saved": saved}[what.strip()](*map(int, step.split()))
    print("beaten", flush=True)
"""


@pytest.fixture
def training(tmp_path):
    """A process that sends heartbeats on command, and its heartbeat file."""
    path = tmp_path / "heartbeat"
    env = {**os.environ, HEARTBEAT_VARIABLE: str(path)}
    with subprocess.Popen(
        [sys.executable, "-c", TRAIN], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "alive\n"
        yield process, str(path)
        process.stdin.close()


def tell(process, what):
    process.stdin.write(f"{what}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "beaten\n"


@pytest.mark.slow
def test_process_reports_heartbeat_and_current_step(training):
    process, path = training
    until(lambda: read_beat(path) is not None)
    first = read_beat(path)
    assert first.step is None and first.step_at is None
    tell(process, "beat 7")
    until(lambda: read_beat(path).step == 7)
    until(lambda: read_beat(path).alive_at > first.alive_at + 0.5)
    found = read_beat(path)
    assert first.alive_at <= found.step_at <= found.alive_at <= boot_time()


def test_a_process_says_that_steps_follow_and_what_it_has_saved(training):
    process, path = training
    tell(process, "expect")
    expected = read_beat(path)
    assert expected.step is None and expected.step_at is not None
    tell(process, "beat 7")
    tell(process, "expect")
    tell(process, "saved 5")
    found = read_beat(path)
    assert (found.step, found.saved) == (7, 5) and found.step_at > expected.step_at


def test_outside_a_pod_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.delenv(HEARTBEAT_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    heartbeat.beat(1)
    assert list(tmp_path.iterdir()) == []


def test_half_a_word_is_none(training, tmp_path):
    process, path = training
    tell(process, "beat 7")
    whole = Path(path).read_text()
    half = tmp_path / "half"
    half.write_text(whole.replace('"alive_at": ', '"alive_at": 1', 1))
    assert read_beat(str(half)) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"alive_at": 1}'])
def test_a_file_that_is_no_heartbeat_is_none(tmp_path, text):
    (tmp_path / "heartbeat").write_text(text)
    assert read_beat(str(tmp_path / "heartbeat")) is None
    assert read_beat(str(tmp_path / "absent")) is None


@pytest.mark.slow
def test_numpy_step_numbers_keep_heartbeats_running():
    page = heartbeat.BeatPage()
    code = """if True:
        import numpy as np
        from tradewind.runtime.pods.on_host import heartbeat
        heartbeat.beat(np.int64(7))
        heartbeat.saved(np.int64(5))
    """
    try:
        subprocess.run([sys.executable, "-c", code], env={**os.environ, HEARTBEAT_VARIABLE: page.path}, check=True)
        said = page.read()
    finally:
        page.close()
    assert said is not None and (said.step, said.saved) == (7, 5)
