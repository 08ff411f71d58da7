"""The guard: a command ends with whoever asked for it, and with all that it started. No Ray here."""

import os
import shlex
import signal
import subprocess
import sys
import time
import uuid

import pytest

from tests.runtime.marked import marked
from tradewind.runtime.process_guard import guarded as guarded_command

MARK = "PROCESS_GUARD_TEST"


def until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.05)


@pytest.fixture
def mark():
    mark = uuid.uuid4().hex
    yield mark
    for process in marked(MARK, mark):
        process.kill()


def guarded(mark: str, *argv: str, watch: tuple[int, ...] = (), **options) -> subprocess.Popen[str]:
    env = {**os.environ, MARK: mark, "TRADEWIND_POD_GRACE_SECONDS": "1"}
    return subprocess.Popen(guarded_command(argv, watch), env=env, start_new_session=True, text=True, **options)


def test_the_guard_ends_with_the_commands_exit_code(mark):
    assert guarded(mark, "sh", "-c", "exit 37").wait(30) == 37


def test_a_command_that_cannot_be_run_is_told_in_one_line(mark):
    guard = guarded(mark, "/no/such/program", stderr=subprocess.PIPE)
    (line,) = guard.communicate(timeout=30)[1].splitlines()
    assert line == "The command cannot be run: [Errno 2] No such file or directory: '/no/such/program'"
    assert guard.returncode == 127


def test_a_guard_in_somebody_elses_group_leaves_that_group_alone(mark):
    env = {**os.environ, MARK: mark}
    script = shlex.join(guarded_command(["true"], [])) + "; echo alive"
    done = subprocess.run(["sh", "-c", script], env=env, start_new_session=True, capture_output=True, text=True)
    assert done.stdout == "alive\n"


def test_the_guard_ends_by_the_commands_signal(mark):
    assert guarded(mark, "sh", "-c", "kill -KILL $$").wait(30) == -signal.SIGKILL
    assert guarded(mark, "sh", "-c", "kill -ABRT $$").wait(30) == -signal.SIGABRT


def test_what_the_command_left_running_ends_with_it(mark):
    assert guarded(mark, "sh", "-c", "sleep 600 & exit 0").wait(30) == 0
    assert marked(MARK, mark) == []


def test_sigterm_ends_the_whole_group_even_if_it_does_not_listen(mark):
    guard = guarded(mark, "sh", "-c", "trap '' TERM; sleep 600 & wait; sleep 600; sleep 600")
    until(lambda: len(marked(MARK, mark)) >= 3)
    guard.terminate()
    guard.wait(30)
    assert marked(MARK, mark) == []


def test_the_command_dies_with_the_process_that_asked_for_it(mark):
    asker = "import subprocess, sys; subprocess.run(sys.argv[1:], start_new_session=True)"
    env = {**os.environ, MARK: mark, "TRADEWIND_POD_GRACE_SECONDS": "1"}
    parent = subprocess.Popen([sys.executable, "-c", asker, *guarded_command(["sleep", "600"], [])], env=env)
    until(lambda: any(process.name() == "sleep" for process in marked(MARK, mark)))
    parent.kill()
    parent.wait(30)
    until(lambda: marked(MARK, mark) == [])


def test_the_command_dies_with_a_watched_process(mark):
    with subprocess.Popen(["sleep", "600"]) as node:
        guard = guarded(mark, "sleep", "600", watch=(node.pid,))
        until(lambda: any(process.name() == "sleep" for process in marked(MARK, mark)))
        node.kill()
        assert guard.wait(30) == -signal.SIGTERM
    assert marked(MARK, mark) == []


def test_the_kernel_ends_the_command_when_the_guard_is_killed(mark):
    guard = guarded(mark, "sleep", "600")
    until(lambda: any(process.name() == "sleep" for process in marked(MARK, mark)))
    guard.kill()
    guard.wait(30)
    until(lambda: marked(MARK, mark) == [])


def test_the_command_sees_the_environment_that_it_was_given(mark):
    guard = guarded(mark, "sh", "-c", f"echo ${MARK}; pwd", stdout=subprocess.PIPE, cwd="/")
    assert guard.communicate(timeout=30)[0].split() == [mark, "/"]


def test_nothing_starts_when_the_watched_process_is_gone_already(mark):
    node = subprocess.Popen(["true"])
    node.wait()
    guard = guarded(mark, "echo", "started", watch=(node.pid,), stdout=subprocess.PIPE)
    assert guard.communicate(timeout=30)[0] == ""
    assert guard.returncode == 143
