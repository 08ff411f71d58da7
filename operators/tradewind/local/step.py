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
from typing import Any, NoReturn

from tradewind.calls.spec import StepSpec
from tradewind.local.job_driver import driver_env
from tradewind.plans.plan import PlannedStep
from tradewind.records.attempts import Attempt, AttemptError, attempt_path, told_attempt
from tradewind.records.leases.lease import Lease, Phase
from tradewind.records.outputs.found_files import OccupiedFolderError
from tradewind.runtime.driver.process_guard import guarded
from tradewind.runtime.run_step import SUPERSEDED
from tradewind.steps import Hosts, ResolvedStep, TpuSlice
from tradewind.storage import NO_ROOTS, Roots
from tradewind.turns.claimed import CHANGED, arguments_of
from tradewind.turns.claims import MissingInputError, StepTurns, Turn
from tradewind.turns.end import JobEnd, Verdict
from tradewind.turns.protocol import Claimant, EndedJob, Next, TurnProtocol, go_on_after
from tradewind.turns.start import Asked, Task

LOOK_INTERVAL_S = 2.0
NOTICE_INTERVAL_S = 60.0
"""How often it is said again who is waited for."""
MOST_GIVEN_UP = 5
"""How many attempts may end because their turn was over, or an input or the store was not as it should be."""


class LocalStepFailedError(RuntimeError):
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
    def version_name(self) -> str:
        """The step and its version as people refer to them."""
        return self.step.version_name


class Drivers:
    """The driver processes of one script.

    Args:
        folder: Where they run: the folder of the script, which they import their functions from.
        has_labels: Each line that they print starts with the step's name, and none is torn.
    """

    def __init__(self, folder: Path, has_labels: bool) -> None:
        self._folder = folder
        self._has_labels = has_labels
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(self, name: str, attempt_file: str, attempt: Attempt) -> int:
        """Run the driver of one attempt to its end; its exit code."""
        arguments = arguments_of(attempt_file, attempt)
        command = guarded([sys.executable, "-u", "-m", "tradewind.runtime.run_step", *arguments], watch=[])
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if self._has_labels else {}
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
        LocalStepFailedError: It has none.
        InterruptedScriptError: The script is ending.
    """
    maker = _Maker(local, drivers, task)
    TurnProtocol(maker.turns, maker).result()


class _Maker(Claimant[None]):
    """A script about one of its steps."""

    def __init__(self, local: LocalStep, drivers: Drivers, task: Task) -> None:
        self.turns = StepTurns(local.step, task.by, roots=local.roots)
        self._local = local
        self._drivers = drivers
        self._task = task
        self._next_notice = 0.0
        self._given_up = 0

    def task(self) -> Task:
        return self._task

    def asked(self) -> Asked:
        return Asked.by_plan(self._local.planned)

    def warn(self, sentence: str) -> None:
        print(sentence, flush=True)

    def finished(self, lease: Lease | None) -> None:
        """The output is what was wanted."""

    def failure(self, lease: Lease | None) -> LocalStepFailedError:
        return _failure(self._local, lease)

    def wait(self, lease: Lease) -> None:
        """Wait a moment: whoever is at work, in whatever process, goes on until its end."""
        if self._task.waited_for != lease.attempt or time.monotonic() >= self._next_notice:
            _say_who_is_at_work(self._local, lease)
            self._next_notice = time.monotonic() + NOTICE_INTERVAL_S
        self._task = replace(self._task, waited_for=lease.attempt)
        self._drivers.pause(LOOK_INTERVAL_S)

    stop_first = doubt = wait

    def rejoin(self, lease: Lease) -> Next:
        self.wait(lease)
        return Next.LOOK

    def claim(self, over: Lease | None, withdraws: bool) -> Turn | None:
        if self._given_up:
            self._drivers.pause(LOOK_INTERVAL_S)
        try:
            return self.turns.claim(over, lambda: self._local.spec, withdraws=withdraws)
        except OccupiedFolderError as error:
            raise LocalStepFailedError(f"Step {self._local.version_name} cannot run. {error}") from error

    def missing_input(self, error: MissingInputError) -> NoReturn:
        raise LocalStepFailedError(
            f"Step {self._local.version_name} cannot run. {error} Run the script again."
        ) from error

    def run(self, turn: Turn) -> Next | None:
        local, attempt = self._local, turn.attempt
        code = self._drivers.run(local.step.name, attempt_path(self.turns.path, attempt.number), attempt)
        seen = go_on_after(self.turns, attempt.job, _driver_end(local, code), _EndedDriver(local, code))
        if seen is Next.LOOK:
            self._given_up += 1
            if self._given_up > MOST_GIVEN_UP:
                raise LocalStepFailedError(
                    f"Step {local.version_name} failed: its driver gave up {self._given_up} times, see above."
                )
        return seen


class _EndedDriver(EndedJob[None]):
    """The driver of an attempt has ended in this script, with all that it had started here."""

    def __init__(self, local: LocalStep, code: int) -> None:
        self._local = local
        self._code = code

    def made(self, lease: Lease) -> None:
        """The output is what was wanted."""

    def failure(self, verdict: Verdict, lease: Lease) -> LocalStepFailedError:
        match verdict:
            case Verdict.FAILED:
                return _failure(self._local, lease)
            case Verdict.STOPPED:
                return self._stopped()
            case Verdict.CHANGED:
                why = "what it was to run was changed after the claim; see above."
                return LocalStepFailedError(f"Step {self._local.version_name}: {why}")
        return self._died()

    def show_log(self) -> None:
        """It has been printed."""

    def lost(self, lease: Lease, *, may_live_on: bool) -> Next:
        if may_live_on:
            raise LocalStepFailedError(
                f"{self._died()} Its hosts may be at work for a while yet, so the next attempt waits until its lease "
                "is stale."
            )
        if lease.phase is not Phase.STOPPED:
            raise self._died()
        if self._code != SUPERSEDED:
            raise self._stopped()
        attempt = told_attempt(self._local.step.output_path, lease.attempt)
        if attempt is not None and attempt.error is not None:
            raise _failure(self._local, lease)  # something killed the function's process: a script does not insist
        return Next.LOOK

    def _stopped(self) -> LocalStepFailedError:
        return LocalStepFailedError(f"Step {self._local.version_name} was stopped.")

    def _died(self) -> LocalStepFailedError:
        code = self._code
        ending = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return LocalStepFailedError(f"Step {self._local.version_name} failed: its driver ended with {ending}.")


def _driver_end(local: LocalStep, code: int) -> JobEnd:
    """What an exit code means for a turn. The guard ends whatever a driver leaves, but for the hosts of a pod."""
    if code == CHANGED:
        return JobEnd.CHANGED
    return JobEnd.LOST if isinstance(local.spec.load_resources(), (TpuSlice, Hosts)) else JobEnd.CHILDREN_ENDED


def _say_who_is_at_work(local: LocalStep, lease: Lease) -> None:
    who = ", ".join(f"{key} {value}" for key, value in lease.by.items()) or lease.worker_id
    print(
        f"Step {local.step.name!r}: attempt {lease.attempt} is at work at {local.step.output_path} ({who}): waiting.",
        flush=True,
    )


def _failure(local: LocalStep, lease: Lease | None) -> LocalStepFailedError:
    """The failure of the turn that ``lease`` tells of."""
    attempt = told_attempt(local.step.output_path, lease.attempt) if lease else None
    failure = LocalStepFailedError(f"Step failed: {local.version_name}, output path {local.step.output_path}.")
    if attempt is not None and attempt.error is not None:
        failure.__cause__ = FunctionFailedError(attempt.error)
    return failure
