"""The process guard kills a command and its descendants when the requester exits, without Ray."""

import contextlib
import math
import os
import shlex
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.runtime.marked import MARK, alive, fencing_time, marked
from tests.support.waiting import until
from tradewind.runtime.driver import process_guard
from tradewind.runtime.driver.child import give_up_reason
from tradewind.runtime.driver.fencing import LeaseDeadline
from tradewind.runtime.driver.process_guard import EXIT_DEADLINE, boot_time, descendants, guard_command

FREEZE_S = 10.0
"""Lease time in which a guard reads its deadline and the test freezes it, also on a slow machine."""
ESCAPES = "setsid env -i sleep 601 & sleep 600"
"""Start a process in a new session with an empty environment, so no variable identifies it."""


@pytest.fixture
def deadline():
    return LeaseDeadline()


def guarded(mark, *argv, watch=(), deadline=None, grace="1", **options) -> subprocess.Popen[str]:
    descriptor = deadline and deadline.descriptor
    command = guard_command(argv, watch, deadline=descriptor, with_input="stdin" in options)
    env = {**os.environ, MARK: mark, "TRADEWIND_POD_GRACE_SECONDS": grace}
    options["pass_fds"] = [descriptor] if deadline else []
    return subprocess.Popen(command, env=env, start_new_session=True, text=True, **options)


def under(deadline, mark, script, **streams):
    return guarded(mark, "sh", "-c", script, deadline=deadline, grace="600", **streams)


def pids(guard: subprocess.Popen[str], *names: str) -> list[int]:
    """Wait until descendants of the guard run all these programs; return their process IDs."""

    def running() -> list[int]:
        return [pid for pid in descendants(guard.pid) if psutil.Process(pid).name() in names]

    until(lambda: len(running()) == len(names))
    return running()


@pytest.mark.parametrize(
    ("argv", "code", "printed"),
    [
        (["sh", "-c", f"echo ${MARK}; pwd; exit 37"], 37, "{mark}\n/\n"),
        (["sh", "-c", "kill -KILL $$"], -signal.SIGKILL, ""),
        (["sh", "-c", "kill -ABRT $$"], -signal.SIGABRT, ""),
        (["/no/such/program"], 127,
         "The command cannot be run: [Errno 2] No such file or directory: '/no/such/program'\n"),
    ],
)  # fmt: skip
def test_guard_passes_environment_and_ends_as_command(mark, argv, code, printed):
    guard = guarded(mark, *argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/")
    assert guard.communicate(timeout=30)[0] == printed.replace("{mark}", mark)
    assert guard.returncode == code


def test_guard_in_group_of_its_parent_spares_that_group(mark):
    env = {**os.environ, MARK: mark}
    script = shlex.join(guard_command(["true"], [])) + "; echo alive"
    done = subprocess.run(["sh", "-c", script], env=env, start_new_session=True, capture_output=True, text=True)
    assert done.stdout == "alive\n"


@pytest.mark.slow
def test_sigterm_ends_group_that_ignores_it(mark):
    guard = guarded(mark, "sh", "-c", "trap '' TERM; sleep 600 & wait; sleep 600; sleep 600")
    until(lambda: len(marked(MARK, mark)) >= 3)
    guard.terminate()
    guard.wait(30)
    assert marked(MARK, mark) == []


def test_command_ends_with_watched_process(mark):
    with subprocess.Popen(["sleep", "600"]) as node:
        guard = guarded(mark, "sleep", "600", watch=(node.pid,))
        pids(guard, "sleep")
        node.kill()
        assert guard.wait(30) == -signal.SIGTERM
    assert marked(MARK, mark) == []


def test_kernel_kills_command_of_killed_guard(mark):
    guard = guarded(mark, "sleep", "600")
    pids(guard, "sleep")
    guard.kill()
    guard.wait(30)
    until(lambda: marked(MARK, mark) == [])


def test_command_does_not_start_without_watched_process(mark):
    node = subprocess.Popen(["true"])
    node.wait()
    guard = guarded(mark, "echo", "started", watch=(node.pid,), stdout=subprocess.PIPE)
    assert guard.communicate(timeout=30)[0] == ""
    assert guard.returncode == 143


# ---- processes that leave the session


def test_exit_of_command_kills_its_descendants(mark):
    script = "sleep 600 & setsid env -i sleep 601 & read line; exit 37"
    guard = guarded(mark, "sh", "-c", script, stdin=subprocess.PIPE)
    left = pids(guard, "sleep", "sleep")
    guard.communicate("go on\n", timeout=30)
    assert guard.returncode == 37
    assert not alive(left)


def test_requester_death_kills_processes_outside_session(mark):
    requester = "import subprocess, sys; subprocess.run(sys.argv[1:], start_new_session=True)"
    env = {**os.environ, MARK: mark, "TRADEWIND_POD_GRACE_SECONDS": "1"}
    command = [sys.executable, "-c", requester, *guard_command(["sh", "-c", ESCAPES], [])]
    parent = subprocess.Popen(command, env=env)
    sleepers = pids(parent, "sleep", "sleep")
    parent.kill()
    parent.wait(30)
    until(lambda: not alive(sleepers))
    until(lambda: marked(MARK, mark) == [])


@pytest.mark.slow
def test_guard_reaps_exited_orphans(mark):
    guard = guarded(mark, "sh", "-c", "for i in 1 2 3; do (setsid sleep 2 &); done; sleep 600")
    sleepers = pids(guard, "sleep", "sleep", "sleep", "sleep")
    until(lambda: sum(psutil.pid_exists(pid) for pid in sleepers) == 1)  # zombies exist until their parent waits
    guard.terminate()
    guard.wait(30)


HOPS = """
import os, sys, time
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.close(os.open(sys.argv[1], os.O_CREAT))
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", ["{hops} & sleep 600", "setsid {hops} & sleep 600"])
def test_guard_kills_process_that_forks_and_exits_in_loop(mark, script, tmp_path):
    looping = tmp_path / "looping"
    hops = shlex.join([sys.executable, "-I", "-S", "-c", HOPS, str(looping)])
    guard = guarded(mark, "sh", "-c", f"trap '' TERM; {script.format(hops=hops)}", stdout=subprocess.PIPE)
    until(lambda: looping.exists() and len(descendants(guard.pid)) >= 2)
    guard.terminate()
    assert guard.communicate(timeout=30)[0] == ""  # a surviving process would keep the pipe open


# ---- lease deadline


def set_and_await(guard, deadline, end, killed_at):
    """Set the lease deadline and wait until the guard has read it."""
    deadline.set(end, killed_at)
    until(lambda: fencing_time(deadline, guard.pid) == killed_at)


@pytest.mark.slow
@pytest.mark.parametrize("is_terminated", [False, True])
def test_lease_deadline_kills_all_without_grace_period(deadline, mark, is_terminated):
    """The requester is alive, and the grace period is ten minutes."""
    guard = under(deadline, mark, f"trap '' TERM; {ESCAPES}; sleep 602")
    sleepers = pids(guard, "sleep", "sleep")
    if is_terminated:
        guard.terminate()
    deadline.set(boot_time() + 0.5)
    assert guard.wait(30) == EXIT_DEADLINE
    assert not alive(sleepers)


PASSED = "tradewind: the lease deadline has passed, since "
FROZEN = f"{PASSED}its owner did not renew it: it is frozen, or cannot reach the store.\n"


@pytest.mark.slow
@pytest.mark.parametrize(("left_s", "printed"), [(0.5, FROZEN), (-math.inf, "")])
def test_passed_deadline_is_printed_unless_set_by_owner(deadline, mark, left_s, printed):
    guard = under(deadline, mark, "exec sleep 600", stderr=subprocess.PIPE)
    pids(guard, "sleep")
    deadline.set(boot_time() + left_s)
    assert guard.communicate(timeout=30)[1] == printed
    assert guard.returncode == EXIT_DEADLINE
    assert deadline.has_ended(guard.pid)
    assert give_up_reason(None).startswith("the step's process was killed, because the deadline of its lease")


@pytest.mark.slow
def test_lease_deadline_kills_command_when_stderr_is_blocked(deadline, mark):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    guard = under(deadline, mark, "exec sleep 600", stderr=writer)
    sleeper = pids(guard, "sleep")
    deadline.set(boot_time() + 0.5)
    until(lambda: not alive(sleeper))
    os.close(reader)
    os.close(writer)
    guard.wait(30)


def test_lease_deadline_during_suspend_is_reported(deadline, monkeypatch, capsys):
    deadline.set(boot_time() + 60)
    shared = process_guard._SharedDeadline(deadline.descriptor)
    assert not shared.is_over
    before_s = process_guard.suspended_s()
    monkeypatch.setattr(process_guard, "boot_time", lambda: boot_time() + 90)
    monkeypatch.setattr(process_guard, "suspended_s", lambda: before_s + 90)
    assert shared.is_over
    shared.print_reason()
    assert capsys.readouterr().err == f"{PASSED}this machine was suspended for 90 s.\n"


def test_passed_lease_deadline_ignores_late_renewal(deadline):
    """Otherwise the driver would report fenced processes as a failure of the command or the machine."""
    shared = process_guard._SharedDeadline(deadline.descriptor)
    deadline.set(boot_time())
    assert shared.is_over
    deadline.set(boot_time() + 60)
    assert deadline.is_over
    os.pwrite(deadline.descriptor, process_guard.DEADLINE.pack(*[boot_time() + 60] * 3), 0)  # a late renewal
    assert shared.is_over


@pytest.mark.slow
@pytest.mark.parametrize("renewals", [0, 4])
def test_command_runs_without_deadline_and_with_renewals(deadline, mark, renewals):
    guard = under(deadline, mark, "sleep 0.8; exit 37")
    for _ in range(renewals):
        deadline.set(boot_time() + 60)
        time.sleep(0.1)
    assert guard.wait(30) == 37


@pytest.mark.slow
@pytest.mark.parametrize("is_renewed", [False, True])
def test_kernel_kills_command_of_guard_frozen_at_deadline(deadline, mark, is_renewed):
    """It is fenced, also after a renewal that the guard cannot read: the command did not run out of memory."""
    guard = under(deadline, mark, "exec sleep 600")
    sleeper = pids(guard, "sleep")
    set_and_await(guard, deadline, boot_time() + FREEZE_S, boot_time() + FREEZE_S + 0.5)
    guard.send_signal(signal.SIGSTOP)
    if is_renewed:
        deadline.set(boot_time() + 60, boot_time() + 61)
    assert guard.wait(30) == -signal.SIGKILL
    assert (deadline.is_over, deadline.has_ended(guard.pid)) == (not is_renewed, True)
    until(lambda: not alive(sleeper))


@pytest.mark.slow
def test_guard_killed_before_deadline_is_not_reported_as_fenced(deadline, mark):
    guard = under(deadline, mark, "exec sleep 600")
    pids(guard, "sleep")
    set_and_await(guard, deadline, boot_time() + 60, boot_time() + 61)
    guard.kill()
    guard.wait(30)
    assert not deadline.has_ended(guard.pid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code"), [("kill -KILL $$", -signal.SIGKILL), (f"exit {EXIT_DEADLINE}", EXIT_DEADLINE)]
)
def test_exit_code_kept_when_deadline_passes_during_cleanup(deadline, mark, tmp_path, script, code):
    ends = f"until [ -e {tmp_path}/end ]; do sleep 0.1; done; {script}"
    guard = under(deadline, mark, f"(trap '' TERM; sleep 600; sleep 600) & {ends}")
    (command,) = until(psutil.Process(guard.pid).children)
    (tmp_path / "end").touch()
    until(lambda: not psutil.pid_exists(command.pid))
    deadline.set(boot_time(), boot_time() + 60)
    assert guard.wait(30) == code
    assert (deadline.is_over, deadline.has_ended(guard.pid)) == (True, False)


def test_exit_code_kept_when_guard_is_frozen_past_deadline(deadline, mark):
    guard = under(deadline, mark, "exec sleep 600")
    (sleeper,) = pids(guard, "sleep")
    guard.send_signal(signal.SIGSTOP)
    os.kill(sleeper, signal.SIGKILL)
    deadline.set(boot_time() - 1, boot_time() + 60)
    guard.send_signal(signal.SIGCONT)
    assert guard.wait(30) == -signal.SIGKILL
    assert not deadline.has_ended(guard.pid)
