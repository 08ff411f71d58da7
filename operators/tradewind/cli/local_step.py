"""One step of a script: what is there is taken, what somebody else makes is waited for, the rest is made right here.

The lease decides, as for every other claimant. The driver is a process of its own under a guard, so that a script that
is killed leaves nobody at work behind it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tradewind.cli.job_driver import driver_env
from tradewind.plans.plan import PlannedStep
from tradewind.plans.start import Adopt, Asked, Claim, Finished, Task, decide_start, start_warning
from tradewind.records.attempts import Attempt, AttemptError, Outcome, attempt_path, told_attempt
from tradewind.records.errors import LeaseLostError
from tradewind.records.found_files import OccupiedFolderError
from tradewind.records.leases import Lease, Phase
from tradewind.records.turns import stop_turn
from tradewind.runtime.claimed import CHANGED, arguments_of
from tradewind.runtime.process_guard import guarded
from tradewind.runtime.run_step import SUPERSEDED
from tradewind.runtime.spec import StepSpec
from tradewind.runtime.step_turns import MissingInputError, StepTurns
from tradewind.steps import Hosts, ResolvedStep, TpuSlice
from tradewind.storage import NO_ROOTS, Roots

LOOK_INTERVAL_S = 2.0
NOTICE_INTERVAL_S = 60.0
"""How often it is said again who is waited for."""
MOST_GIVEN_UP = 5
"""How many attempts may end because their turn was over, or an input or the store was not as it should be."""


class StepFailedError(RuntimeError):
    """A step has no result; its cause, if there is one, is what its function raised."""


class FunctionFailedError(RuntimeError):
    """What a step's function raised in its own process, as text; the traceback is a note."""

    def __init__(self, error: AttemptError) -> None:
        super().__init__(f"{error.type}: {error.message}")
        if error.traceback:
            self.add_note(error.traceback)


class InterruptedScriptError(RuntimeError):
    """The script ends before its steps have."""


@dataclass(frozen=True, eq=False)
class LocalStep:
    """A step that the plan wants, and all that its driver needs."""

    step: ResolvedStep
    spec: StepSpec
    planned: PlannedStep
    roots: Roots = NO_ROOTS

    @property
    def version(self) -> str:
        """The step and its version as people refer to them."""
        return f"{self.step.name}-{self.step.hash}"


class Drivers:
    """The driver processes of one script.

    Args:
        folder: Where they run: the folder of the script, which they import their functions from.
        labelled: Each line that they print starts with the step's name, and none is torn.
    """

    def __init__(self, folder: Path, labelled: bool) -> None:
        self._folder = folder
        self._labelled = labelled
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(self, name: str, attempt_file: str, attempt: Attempt) -> int:
        """Run the driver of one attempt to its end; its exit code."""
        arguments = arguments_of(attempt_file, attempt)
        command = guarded([sys.executable, "-u", "-m", "tradewind.runtime.run_step", *arguments], watch=[])
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if self._labelled else {}
        with self._lock:
            self.pause(0)
            env = driver_env(os.environ, self._folder)
            driver = subprocess.Popen(command, cwd=self._folder, env=env, start_new_session=True, **streams)
            self._running.add(driver)
        for line in driver.stdout or ():
            text = line.decode(errors="replace").rstrip("\n")
            print(f"[{name}] {text}\n", end="", flush=True)  # one write, so that lines stay whole
        code = driver.wait()
        with self._lock:
            self._running.discard(driver)
        return code

    def pause(self, seconds: float) -> None:
        """Wait, but not longer than the script lives.

        Raises:
            InterruptedScriptError: The script is ending.
        """
        if self._stopping.wait(seconds):
            raise InterruptedScriptError("The script was interrupted.")

    def stop(self) -> None:
        """Ask all drivers to stop; none starts from now on."""
        with self._lock:
            self._stopping.set()
            for driver in self._running:
                driver.terminate()


def make_output(local: LocalStep, drivers: Drivers, task: Task) -> None:
    """Return when the step's output is a result, whoever made it.

    Raises:
        StepFailedError: It has none.
        InterruptedScriptError: The script is ending.
    """
    planned, turns = local.planned, StepTurns(local.step, task.by, roots=local.roots)
    asked = Asked.by_plan(planned)
    next_notice, given_up = 0.0, 0
    while True:
        record = turns.read()
        start = decide_start(record, task, asked)
        if isinstance(start, Finished):
            if warning := start_warning(start, local.step):
                print(warning, flush=True)
            return
        if isinstance(start, Adopt):
            raise _failure(local, start.lease)
        if isinstance(start, Claim):
            attempt = _claim(turns, local, record.lease, start.withdraws)
            if attempt is not None:
                if _has_result(local, turns, attempt, drivers):
                    return
                given_up += 1
                if given_up > MOST_GIVEN_UP:
                    raise StepFailedError(
                        f"Step {local.version} failed: its driver gave up {given_up} times, see above."
                    )
                drivers.pause(LOOK_INTERVAL_S)
            continue
        if task.waited_for != start.lease.attempt or time.monotonic() >= next_notice:
            _say_who_is_at_work(local, start.lease)
            next_notice = time.monotonic() + NOTICE_INTERVAL_S
        task = replace(task, waited_for=start.lease.attempt)
        drivers.pause(LOOK_INTERVAL_S)


def _say_who_is_at_work(local: LocalStep, lease: Lease) -> None:
    who = ", ".join(f"{key} {value}" for key, value in lease.by.items()) or lease.worker_id
    print(
        f"Step {local.step.name!r}: attempt {lease.attempt} is at work at {local.step.output_path} ({who}): waiting.",
        flush=True,
    )


def _claim(turns: StepTurns, local: LocalStep, over: Lease | None, withdraws: bool) -> Attempt | None:
    """Take the turn, if nobody else was faster."""
    try:
        turn = turns.claim(over, lambda: local.spec, withdraws=withdraws)
    except MissingInputError as error:
        raise StepFailedError(f"Step {local.version} cannot run. {error} Run the script again.") from error
    except OccupiedFolderError as error:
        raise StepFailedError(f"Step {local.version} cannot run. {error}") from error
    return turn.attempt if turn is not None else None


def _has_result(local: LocalStep, turns: StepTurns, attempt: Attempt, drivers: Drivers) -> bool:
    """Run the attempt; whether it left a result. False if its turn is over and another one is due."""
    code = drivers.run(local.step.name, attempt_path(turns.path, attempt.number), attempt)
    held = turns.store.read()
    if held is None or held.lease.job != attempt.job:
        return False
    if code == CHANGED:
        turns.end_unstarted(attempt.job, Phase.STOPPED, Outcome.LOST)
        raise StepFailedError(f"Step {local.version}: what it was to run was changed after the claim; see above.")
    match held.lease.phase:
        case Phase.COMMITTED:
            return True
        case Phase.FAILED:
            raise _failure(local, held.lease)
        case Phase.STOPPED:
            if code == SUPERSEDED:
                if _was_killed(local, held.lease):
                    raise _failure(local, held.lease)
                return False
            raise StepFailedError(f"Step {local.version} was stopped.")
    if held.lease.phase is Phase.RUNNING and isinstance(local.spec.load_resources(), (TpuSlice, Hosts)):
        raise StepFailedError(
            f"Step {local.version} failed: its driver ended with {_ending(code)}. Its hosts may be at work for a while "
            "yet, so the next attempt waits until its lease is stale."
        )
    # The guard has ended whatever the driver left, so nobody is at work under this lease any more.
    try:
        stop_turn(lambda **changes: turns.store.change(held, **changes), turns.path, attempt, Outcome.LOST)
    except LeaseLostError:
        return False
    raise StepFailedError(f"Step {local.version} failed: its driver ended with {_ending(code)}.")


def _was_killed(local: LocalStep, lease: Lease) -> bool:
    """Whether something killed the function's process, such as a machine without memory: a script does not insist."""
    attempt = told_attempt(local.step.output_path, lease.attempt)
    return attempt is not None and attempt.error is not None


def _failure(local: LocalStep, lease: Lease | None) -> StepFailedError:
    """The failure of the turn that ``lease`` tells of."""
    attempt = told_attempt(local.step.output_path, lease.attempt) if lease else None
    failure = StepFailedError(f"Step failed: {local.version}, output path {local.step.output_path}.")
    if attempt is not None and attempt.error is not None:
        failure.__cause__ = FunctionFailedError(attempt.error)
    return failure


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
