"""One step of a script: what is there is taken, what somebody else makes is waited for, the rest is made right here.

The lease decides, as for every other claimant. The driver is a process of its own under a guard, so that a script that
is killed leaves nobody at work behind it.
"""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tradewind.plans.plan import PlannedStep
from tradewind.plans.start import Adopt, Asked, Claim, Finished, Task, decide_start
from tradewind.ray_jobs.ids import step_job_id
from tradewind.records.attempts import Attempt, AttemptError, Outcome, attempt_path, read_attempt, utc_now
from tradewind.records.errors import LeaseLostError
from tradewind.records.lease_store import Held, LeaseStore
from tradewind.records.leases import HEARTBEAT_S, Lease, Phase
from tradewind.records.reading import read_record, read_records
from tradewind.records.step_info import write_step_info
from tradewind.records.turns import input_digests, next_number, stop_turn, take_turn, unfinished
from tradewind.runtime.process_guard import guarded
from tradewind.runtime.run_step import SUPERSEDED
from tradewind.runtime.spec import StepSpec
from tradewind.steps import ResolvedStep

LOOK_INTERVAL_S = 2.0
NOTICE_INTERVAL_S = 60.0
"""How often it is said again who is waited for."""


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

    def run(self, name: str, attempt_file: str) -> int:
        """Run the driver of one attempt to its end; its exit code."""
        command = guarded([sys.executable, "-u", "-m", "tradewind.runtime.run_step", attempt_file], watch=[])
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if self._labelled else {}
        with self._lock:
            self.pause(0)
            driver = subprocess.Popen(command, cwd=self._folder, start_new_session=True, **streams)
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
    path, planned = local.step.output_path, local.planned
    store = LeaseStore(path)
    asked = Asked(planned_attempt=planned.attempt, is_forced=planned.is_forced)
    next_notice = 0.0
    while True:
        held = store.read()  # before the record: if that tells of a later turn, the claim over this one fails
        start = decide_start(read_record(path), task, asked)
        if isinstance(start, Finished):
            return
        if isinstance(start, Adopt):
            raise _failure(local, start.lease)
        if isinstance(start, Claim):
            attempt = _claim(local, store, held, task.by, start.withdraws)
            if attempt is not None and _has_result(local, store, attempt, drivers.run(local.step.name, attempt.file)):
                return
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


@dataclass(frozen=True)
class _Claimed:
    """An attempt that is ours to make."""

    attempt: Attempt
    file: str


def _claim(
    local: LocalStep, store: LeaseStore, over: Held | None, by: Mapping[str, Any], withdraws: bool
) -> _Claimed | None:
    """Take the turn, if nobody else was faster."""
    step = local.step
    inputs = read_records([dependency.output_path for dependency in step.dependencies])
    if missing := unfinished(inputs):
        raise StepFailedError(
            f"Step {local.version} cannot run: its input {missing[0]} is no result (any more). Run the script again."
        )
    number = next_number(step.output_path, over.lease if over else None)
    job = step_job_id(step.name, step.output_path, step.hash, number)
    attempt = Attempt(
        number, job, "", dict(by), local.spec.to_json(), input_digests(inputs), withdraws, started_at=utc_now()
    )
    version = hashlib.md5(step.version_json.encode(), usedforsecurity=False).hexdigest()
    if take_turn(store, step.output_path, over, attempt, version, HEARTBEAT_S) is None:
        return None
    write_step_info(step, local.spec.fn_name)
    return _Claimed(attempt, attempt_path(step.output_path, number))


def _has_result(local: LocalStep, store: LeaseStore, claimed: _Claimed, code: int) -> bool:
    """Whether the driver, which ended with ``code``, left a result; False if its turn is over and another one due."""
    held = store.read()
    if held is None or held.lease.job != claimed.attempt.job:
        return False
    match held.lease.phase:
        case Phase.COMMITTED:
            return True
        case Phase.FAILED:
            raise _failure(local, held.lease)
        case Phase.STOPPED:
            if code == SUPERSEDED:
                return False
            raise StepFailedError(f"Step {local.version} was stopped.")
    # The guard has ended whatever the driver left, so nobody is at work under this lease any more.
    try:
        stop_turn(
            lambda **changes: store.change(held, **changes), local.step.output_path, claimed.attempt, Outcome.LOST
        )
    except LeaseLostError:
        return False
    raise StepFailedError(f"Step {local.version} failed: its driver ended with {_ending(code)}.")


def _failure(local: LocalStep, lease: Lease | None) -> StepFailedError:
    """The failure of the turn that ``lease`` tells of."""
    attempt = read_attempt(attempt_path(local.step.output_path, lease.attempt)) if lease else None
    failure = StepFailedError(f"Step failed: {local.version}, output path {local.step.output_path}.")
    if attempt is not None and attempt.error is not None:
        failure.__cause__ = FunctionFailedError(attempt.error)
    return failure


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
