"""The process guard kills a command and its descendants when the requester exits, without Ray."""

import contextlib
import math
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid

import psutil
import pytest

from tests.runtime.guards import noted_end
from tests.runtime.marked import alive, marked
from tests.support.waiting import until
from tradewind.runtime.driver import process_guard
from tradewind.runtime.driver.child import give_up_reason
from tradewind.runtime.driver.fencing import LeaseDeadline
from tradewind.runtime.driver.process_guard import EXIT_DEADLINE, boot_time, descendants, guard_command

MARK = "PROCESS_GUARD_TEST"
HEARD_S = 10.0
"""Lease time in which a guard reads its deadline and the test freezes it, also on a slow machine."""


def hear(guard, term, end, killed_at):
    """Set the lease deadline and wait until the guard has read it."""
    term.set(end, killed_at)
    until(lambda: noted_end(term, guard.pid) == killed_at)


@pytest.fixture
def mark():
    mark = uuid.uuid4().hex
    yield mark
    for process in marked(MARK, mark):
        process.kill()


def guarded(mark: str, *argv: str, watch: tuple[int, ...] = (), **options) -> subprocess.Popen[str]:
    env = {**os.environ, MARK: mark, "TRADEWIND_POD_GRACE_SECONDS": "1"}
    return subprocess.Popen(guard_command(argv, watch), env=env, start_new_session=True, text=True, **options)


def test_the_guard_ends_with_the_commands_exit_code(mark):
    assert guarded(mark, "sh", "-c", "exit 37").wait(30) == 37


def test_a_command_that_cannot_be_run_is_told_in_one_line(mark):
    guard = guarded(mark, "/no/such/program", stderr=subprocess.PIPE)
    (line,) = guard.communicate(timeout=30)[1].splitlines()
    assert line == "The command cannot be run: [Errno 2] No such file or directory: '/no/such/program'"
    assert guard.returncode == 127


def test_a_guard_in_somebody_elses_group_leaves_that_group_alone(mark):
    env = {**os.environ, MARK: mark}
    script = shlex.join(guard_command(["true"], [])) + "; echo alive"
    done = subprocess.run(["sh", "-c", script], env=env, start_new_session=True, capture_output=True, text=True)
    assert done.stdout == "alive\n"


def test_the_guard_ends_by_the_commands_signal(mark):
    assert guarded(mark, "sh", "-c", "kill -KILL $$").wait(30) == -signal.SIGKILL
    assert guarded(mark, "sh", "-c", "kill -ABRT $$").wait(30) == -signal.SIGABRT


def test_what_the_command_left_running_ends_with_it(mark):
    assert guarded(mark, "sh", "-c", "sleep 600 & exit 0").wait(30) == 0
    assert marked(MARK, mark) == []


@pytest.mark.slow
def test_sigterm_ends_the_whole_group_even_if_it_does_not_listen(mark):
    guard = guarded(mark, "sh", "-c", "trap '' TERM; sleep 600 & wait; sleep 600; sleep 600")
    until(lambda: len(marked(MARK, mark)) >= 3)
    guard.terminate()
    guard.wait(30)
    assert marked(MARK, mark) == []


def test_the_command_dies_with_the_process_that_asked_for_it(mark):
    asker = "import subprocess, sys; subprocess.run(sys.argv[1:], start_new_session=True)"
    env = {**os.environ, MARK: mark, "TRADEWIND_POD_GRACE_SECONDS": "1"}
    parent = subprocess.Popen([sys.executable, "-c", asker, *guard_command(["sleep", "600"], [])], env=env)
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


# ---- processes that leave the session


ESCAPES = "setsid env -i sleep 601 & sleep 600"
"""Start a process in a new session with an empty environment, so no variable identifies it."""


def pids(guard: subprocess.Popen[str], *names: str) -> list[int]:
    """Wait until descendants of the guard run all these programs; return their process IDs."""

    def found() -> list[int]:
        return [pid for pid in descendants(guard.pid) if psutil.Process(pid).name() in names]

    until(lambda: len(found()) == len(names))
    return found()


def test_what_left_the_session_ends_with_the_command(mark):
    command = guard_command(["sh", "-c", "setsid env -i sleep 601 & read line; exit 37"], [], with_input=True)
    env = {**os.environ, MARK: mark}
    guard = subprocess.Popen(command, env=env, start_new_session=True, text=True, stdin=subprocess.PIPE)
    escaped = pids(guard, "sleep")
    guard.communicate("go on\n", timeout=30)
    assert guard.returncode == 37
    assert not alive(escaped)


def test_requester_death_kills_processes_outside_session(mark):
    asker = "import subprocess, sys; subprocess.run(sys.argv[1:], start_new_session=True)"
    env = {**os.environ, MARK: mark, "TRADEWIND_POD_GRACE_SECONDS": "1"}
    parent = subprocess.Popen([sys.executable, "-c", asker, *guard_command(["sh", "-c", ESCAPES], [])], env=env)
    sleepers = pids(parent, "sleep", "sleep")
    parent.kill()
    parent.wait(30)
    until(lambda: not alive(sleepers))


@pytest.mark.slow
def test_orphans_that_have_ended_are_not_kept(mark):
    guard = guarded(mark, "sh", "-c", "for i in 1 2 3; do (setsid sleep 2 &); done; sleep 600")
    sleepers = pids(guard, "sleep", "sleep", "sleep", "sleep")
    until(lambda: sum(psutil.pid_exists(pid) for pid in sleepers) == 1)  # zombies exist until their parent waits
    guard.terminate()
    guard.wait(30)


HOPS = """
import os, time
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", ["{hops} & sleep 600", "setsid {hops} & sleep 600"])
def test_who_forks_and_ends_all_the_time_ends_too(mark, script):
    hops = shlex.join([sys.executable, "-I", "-S", "-c", HOPS])
    guard = guarded(mark, "sh", "-c", f"trap '' TERM; {script.format(hops=hops)}", stdout=subprocess.PIPE)
    until(lambda: len(descendants(guard.pid)) >= 2)
    time.sleep(0.3)  # the script forks in a loop by now
    guard.terminate()
    assert guard.communicate(timeout=30)[0] == ""  # a surviving process would keep the pipe open


# ---- lease deadline


def under(term: LeaseDeadline, mark: str, script: str, grace: str = "600", **streams: int) -> subprocess.Popen[str]:
    command = guard_command(["sh", "-c", script], [], deadline=term.descriptor)
    env = {**os.environ, MARK: mark, "TRADEWIND_POD_GRACE_SECONDS": grace}
    return subprocess.Popen(command, env=env, start_new_session=True, text=True, pass_fds=[term.descriptor], **streams)


@pytest.mark.slow
def test_lease_deadline_kills_all_processes_of_live_requester(mark):
    term = LeaseDeadline()
    guard = under(term, mark, f"trap '' TERM; {ESCAPES}")
    sleepers = pids(guard, "sleep", "sleep")
    term.set(boot_time() + 0.5)
    assert guard.wait(30) == EXIT_DEADLINE
    assert not alive(sleepers)


OVER = "tradewind: the lease deadline has passed, since "
FROZEN = f"{OVER}its owner did not renew it: it is frozen, or cannot reach the store.\n"


@pytest.mark.slow
@pytest.mark.parametrize(("left_s", "said"), [(0.5, FROZEN), (-math.inf, "")])
def test_the_end_of_a_term_is_told_unless_its_keeper_ended_it(mark, left_s, said):
    term = LeaseDeadline()
    guard = under(term, mark, "exec sleep 600", stderr=subprocess.PIPE)
    pids(guard, "sleep")
    term.set(boot_time() + left_s)
    assert guard.communicate(timeout=30)[1] == said
    assert guard.returncode == EXIT_DEADLINE
    assert term.has_ended(guard.pid)
    assert give_up_reason(None).startswith("the step's process was killed, because the deadline of its lease")


@pytest.mark.slow
def test_lease_deadline_kills_command_when_stderr_is_blocked(mark):
    term, (reader, writer) = LeaseDeadline(), os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    guard = under(term, mark, "exec sleep 600", stderr=writer)
    (sleeper,) = pids(guard, "sleep")
    term.set(boot_time() + 0.5)
    until(lambda: not alive([sleeper]))
    os.close(reader)
    os.close(writer)
    guard.wait(30)


def test_lease_deadline_during_suspend_is_reported(monkeypatch, capsys):
    term = LeaseDeadline()
    term.set(boot_time() + 60)
    seen = process_guard._SharedDeadline(term.descriptor)
    assert not seen.is_over
    before_s = process_guard.suspended_s()
    monkeypatch.setattr(process_guard, "boot_time", lambda: boot_time() + 90)
    monkeypatch.setattr(process_guard, "suspended_s", lambda: before_s + 90)
    assert seen.is_over
    seen.print_reason()
    assert capsys.readouterr().err == (
        "tradewind: the lease deadline has passed, since this machine was suspended for 90 s.\n"
    )


def test_passed_lease_deadline_ignores_late_renewal():
    """Otherwise the driver would report fenced processes as a failure of the command or the machine."""
    term = LeaseDeadline()
    seen = process_guard._SharedDeadline(term.descriptor)
    term.set(boot_time())
    assert seen.is_over
    term.set(boot_time() + 60)
    assert term.is_over
    os.pwrite(term.descriptor, process_guard.DEADLINE.pack(*[boot_time() + 60] * 3), 0)  # a late renewal
    assert seen.is_over


@pytest.mark.slow
def test_a_term_that_is_prolonged_goes_on(mark):
    term = LeaseDeadline()
    term.set(boot_time() + 60)
    guard = under(term, mark, "sleep 0.8; exit 37")
    for _ in range(4):
        term.set(boot_time() + 60)
        time.sleep(0.1)
    assert guard.wait(30) == 37


@pytest.mark.slow
def test_the_end_of_the_term_does_not_wait_for_a_polite_end(mark):
    term = LeaseDeadline()
    guard = under(term, mark, f"trap '' TERM; {ESCAPES}; sleep 602")
    sleepers = pids(guard, "sleep", "sleep")
    guard.terminate()
    term.set(boot_time() + 0.5)
    assert guard.wait(30) == EXIT_DEADLINE  # the grace period alone would last ten minutes
    assert not alive(sleepers)


@pytest.mark.slow
def test_kernel_kills_command_of_guard_frozen_at_deadline(mark):
    term = LeaseDeadline()
    guard = under(term, mark, "exec sleep 600")
    (sleeper,) = pids(guard, "sleep")
    hear(guard, term, boot_time() + HEARD_S, boot_time() + HEARD_S + 0.5)
    guard.send_signal(signal.SIGSTOP)
    assert guard.wait(30) == -signal.SIGKILL
    assert term.has_ended(guard.pid)
    until(lambda: not alive([sleeper]))


@pytest.mark.slow
def test_guard_killed_before_deadline_is_not_reported_as_fenced(mark):
    term = LeaseDeadline()
    guard = under(term, mark, "exec sleep 600")
    pids(guard, "sleep")
    hear(guard, term, boot_time() + 60, boot_time() + 61)
    guard.kill()
    guard.wait(30)
    assert not term.has_ended(guard.pid)


@pytest.mark.slow
def test_guard_frozen_during_renewal_is_reported_as_fenced(mark):
    """The driver must not report that the command ran out of memory."""
    term = LeaseDeadline()
    guard = under(term, mark, "exec sleep 600")
    pids(guard, "sleep")
    hear(guard, term, boot_time() + HEARD_S, boot_time() + HEARD_S + 0.5)
    guard.send_signal(signal.SIGSTOP)
    term.set(boot_time() + 60, boot_time() + 61)
    assert guard.wait(30) == -signal.SIGKILL
    assert (term.is_over, term.has_ended(guard.pid)) == (False, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code"), [("kill -KILL $$", -signal.SIGKILL), (f"exit {EXIT_DEADLINE}", EXIT_DEADLINE)]
)
def test_exit_code_kept_when_deadline_passes_during_cleanup(mark, tmp_path, script, code):
    term = LeaseDeadline()
    ends = f"until [ -e {tmp_path}/end ]; do sleep 0.1; done; {script}"
    guard = under(term, mark, f"(trap '' TERM; sleep 600; sleep 600) & {ends}")
    (command,) = until(psutil.Process(guard.pid).children)
    (tmp_path / "end").touch()
    until(lambda: not psutil.pid_exists(command.pid))
    term.set(boot_time(), boot_time() + 60)
    assert guard.wait(30) == code
    assert (term.is_over, term.has_ended(guard.pid)) == (True, False)


def test_exit_code_kept_when_guard_is_frozen_past_deadline(mark):
    term = LeaseDeadline()
    guard = under(term, mark, "exec sleep 600")
    (sleeper,) = pids(guard, "sleep")
    guard.send_signal(signal.SIGSTOP)
    os.kill(sleeper, signal.SIGKILL)
    term.set(boot_time() - 1, boot_time() + 60)
    guard.send_signal(signal.SIGCONT)
    assert guard.wait(30) == -signal.SIGKILL
    assert not term.has_ended(guard.pid)


@pytest.mark.slow
def test_a_guard_that_was_told_nothing_of_an_end_runs_on(mark):
    guard = under(LeaseDeadline(), mark, "sleep 0.6; exit 37")
    assert guard.wait(30) == 37
