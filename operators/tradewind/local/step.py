"""One step of a script: reuse its result, wait for another process's attempt, or run it here.

The lease decides, as for every other claimer. The driver is a separate process under a process guard, so that a killed
script leaves no running processes.

Inside a Ray job, a script passes the job's module paths on to its drivers, and so to the hosts of their pods. A driver
runs in the folder of the script. The workers run in the job's working directory, which has another path on each node:
paths below it are given relative to it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn

from tradewind.attempts.decisions import JobResult, NextAction, RerunRequest, TaskIdentity
from tradewind.attempts.protocol import (
    AttemptHandler,
    AttemptProtocol,
    Continuation,
    JobOutcomeHandler,
    resolve_finished_job,
)
from tradewind.attempts.spec_digest import EXIT_SPEC_CHANGED, driver_arguments
from tradewind.attempts.step_lease import ClaimedAttempt, MissingInputError, StepLease
from tradewind.plans.plan import PlannedStep
from tradewind.records.attempts import Attempt, AttemptError, attempt_path, read_attempt_or_none
from tradewind.records.discovery import OccupiedFolderError
from tradewind.records.lease import Lease, Phase
from tradewind.runtime.driver.process_guard import guard_command
from tradewind.runtime.run_step import SUPERSEDED
from tradewind.serialization.spec import StepSpec
from tradewind.steps import Hosts, ResolvedStep, TpuSlice
from tradewind.storage import NO_ROOTS, Roots
from tradewind.text import escape_control_characters

POLL_S = 2.0
NOTICE_INTERVAL_S = 60.0
"""How often the waiting message is repeated."""
MAX_LOST_ATTEMPTS = 5
"""How many attempts may end because of a lost lease, a bad input or a store error."""
_RAY_JOB: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Variable that Ray sets for a job's entrypoint: settings that its Ray drivers inherit from the job."""


def in_ray_job(environ: Mapping[str, str]) -> bool:
    """Return whether this is a Ray job's environment, whose process can reserve hosts on its cluster."""
    return _RAY_JOB in environ


def driver_env(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of a driver that runs in ``folder``, that of the script.

    Relative module paths become absolute, since the script may run in another folder.
    """
    paths = _entries(environ.get("PYTHONPATH", ""))
    absolute = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, paths))} if paths else {}
    if not in_ray_job(environ):
        return {**environ, **absolute}
    job = json.loads(environ[_RAY_JOB])
    runtime_env = dict(job.get("runtime_env") or {})
    worker_env = dict(runtime_env.get("env_vars") or {})
    place = _path_for_workers(folder, paths if "working_dir" in runtime_env else [])
    worker_env["PYTHONPATH"] = os.pathsep.join([place, *_entries(worker_env.get("PYTHONPATH", ""))])
    runtime_env["env_vars"] = worker_env
    return {
        **environ,
        **absolute,
        _RAY_JOB: json.dumps({**job, "runtime_env": runtime_env}),
    }


def _entries(path: str) -> list[str]:
    return [entry for entry in path.split(os.pathsep) if entry]


def _path_for_workers(folder: Path, paths: list[str]) -> str:
    """Return the folder's path for the job's workers: Ray puts their working directory first into PYTHONPATH."""
    real = os.path.realpath(folder)
    parents = (os.path.realpath(path) for path in paths if os.path.isabs(path))
    working_dir = next((path for path in parents if Path(real).is_relative_to(path)), None)
    return os.path.relpath(real, working_dir) if working_dir else real


class LocalStepFailedError(RuntimeError):
    """A step has no result; its cause, if any, is the error of its function."""


class FunctionFailedError(RuntimeError):
    """Error of a step's function in its own process, as text; the traceback is a note."""

    def __init__(self, error: AttemptError) -> None:
        super().__init__(f"{error.type}: {error.message}")
        if error.traceback:
            self.add_note(error.traceback)


class InterruptedScriptError(RuntimeError):
    """The script ends before its steps."""


@dataclass(frozen=True, eq=False)
class LocalStep:
    """A planned step, with its driver's input."""

    step: ResolvedStep
    spec: StepSpec
    planned: PlannedStep
    roots: Roots = NO_ROOTS

    @property
    def version_name(self) -> str:
        """Return step and version as ``name-hash``."""
        return self.step.version_name


class Drivers:
    """Driver processes of one script.

    Args:
        folder: Their folder, that of the script, from which they import functions.
        has_labels: Prefix each output line with the step's name, and write it whole.
    """

    def __init__(self, folder: Path, has_labels: bool) -> None:
        self._folder = folder
        self._has_labels = has_labels
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(self, name: str, attempt_file: str, attempt: Attempt) -> int:
        """Run the driver of one attempt to its end; return its exit code."""
        arguments = driver_arguments(attempt_file, attempt)
        command = guard_command([sys.executable, "-u", "-m", "tradewind.runtime.run_step", *arguments], watch=[])
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
        """Wait, at most until the script ends.

        Raises:
            InterruptedScriptError: The script is ending.
        """
        if self._stopping.wait(seconds):
            raise InterruptedScriptError("The script was interrupted.")

    def stop(self) -> None:
        """Ask all drivers to stop; start no more."""
        with self._lock:
            self._stopping.set()
            for driver in self._running:
                driver.terminate()


def make_output(local: LocalStep, drivers: Drivers, task: TaskIdentity) -> None:
    """Return when the step has a result, of this script or of another process.

    Raises:
        LocalStepFailedError: The step has no result.
        InterruptedScriptError: The script is ending.
    """
    handler = _ScriptAttemptHandler(local, drivers, task)
    AttemptProtocol(handler.lease, handler).result()


class _ScriptAttemptHandler(AttemptHandler[None]):
    """Reactions of a script to the state of one of its steps."""

    def __init__(self, local: LocalStep, drivers: Drivers, task: TaskIdentity) -> None:
        self.lease = StepLease(local.step, task.by, roots=local.roots)
        self._local = local
        self._drivers = drivers
        self._task = task
        self._next_notice = 0.0
        self._lost_attempts = 0

    def task(self) -> TaskIdentity:
        return self._task

    def rerun_request(self) -> RerunRequest:
        return RerunRequest.from_plan(self._local.planned)

    def warn(self, sentence: str) -> None:
        print(escape_control_characters(sentence), flush=True)

    def finished(self, lease: Lease | None) -> None:
        """Do nothing: the step has its result."""

    def failure(self, lease: Lease | None) -> LocalStepFailedError:
        return _failure(self._local, lease)

    def wait(self, lease: Lease) -> None:
        """Pause: the running attempt continues until its end, in this or another process."""
        if self._task.waited_for != lease.attempt or time.monotonic() >= self._next_notice:
            _report_owner(self._local, lease)
            self._next_notice = time.monotonic() + NOTICE_INTERVAL_S
        self._task = replace(self._task, waited_for=lease.attempt)
        self._drivers.pause(POLL_S)

    cancel_previous = ownership_unknown = wait

    def reattach(self, lease: Lease) -> Continuation:
        self.wait(lease)
        return Continuation.RECHECK

    def claim(self, over: Lease | None, withdraws: bool) -> ClaimedAttempt | None:
        if self._lost_attempts:
            self._drivers.pause(POLL_S)
        try:
            return self.lease.claim(over, lambda: self._local.spec, withdraws=withdraws)
        except OccupiedFolderError as error:
            raise LocalStepFailedError(f"Step {self._local.version_name} cannot run. {error}") from error

    def missing_input(self, error: MissingInputError) -> NoReturn:
        raise LocalStepFailedError(
            f"Step {self._local.version_name} cannot run. {error} Run the script again."
        ) from error

    def run(self, claimed: ClaimedAttempt) -> Continuation | None:
        local, attempt = self._local, claimed.attempt
        code = self._drivers.run(local.step.name, attempt_path(self.lease.path, attempt.number), attempt)
        continuation = resolve_finished_job(
            self.lease, attempt.job, _driver_end(local, code), _DriverOutcomeHandler(local, code)
        )
        if continuation is Continuation.RECHECK:
            self._lost_attempts += 1
            if self._lost_attempts > MAX_LOST_ATTEMPTS:
                raise LocalStepFailedError(
                    f"Step {local.version_name} failed: its driver gave up {self._lost_attempts} times; see its output "
                    "above."
                )
        return continuation


class _DriverOutcomeHandler(JobOutcomeHandler[None]):
    """Reactions to the end of an attempt's driver and of all its processes on this machine."""

    def __init__(self, local: LocalStep, code: int) -> None:
        self._local = local
        self._code = code

    def succeeded(self, lease: Lease) -> None:
        """Do nothing: the step has its result."""

    def failure(self, action: NextAction, lease: Lease) -> LocalStepFailedError:
        match action:
            case NextAction.FAILED:
                return _failure(self._local, lease)
            case NextAction.STOPPED:
                return self._stopped()
            case NextAction.SPEC_CHANGED:
                name = self._local.version_name
                return LocalStepFailedError(f"Step {name} failed: its spec changed after the claim; see above.")
        return self._died()

    def show_log(self) -> None:
        """Do nothing: the log has been printed."""

    def lost(self, lease: Lease, *, may_survive: bool) -> Continuation:
        if may_survive:
            raise LocalStepFailedError(
                f"{self._died()} Its hosts may still be running, so the next attempt waits until its lease is stale."
            )
        if lease.phase is not Phase.STOPPED:
            raise self._died()
        if self._code != SUPERSEDED:
            raise self._stopped()
        attempt = read_attempt_or_none(self._local.step.output_path, lease.attempt)
        if attempt is not None and attempt.error is not None:
            raise _failure(self._local, lease)  # the function's process was killed: a script does not retry
        return Continuation.RECHECK

    def _stopped(self) -> LocalStepFailedError:
        return LocalStepFailedError(f"Step {self._local.version_name} was stopped.")

    def _died(self) -> LocalStepFailedError:
        code = self._code
        ending = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return LocalStepFailedError(f"Step {self._local.version_name} failed: its driver ended with {ending}.")


def _driver_end(local: LocalStep, code: int) -> JobResult:
    """Convert an exit code to a result. The guard kills a driver's processes, except on a pod's hosts."""
    if code == EXIT_SPEC_CHANGED:
        return JobResult.SPEC_CHANGED
    return JobResult.LOST if isinstance(local.spec.load_resources(), (TpuSlice, Hosts)) else JobResult.CHILDREN_ENDED


def _report_owner(local: LocalStep, lease: Lease) -> None:
    owner = ", ".join(f"{key} {value}" for key, value in lease.by.items()) or lease.worker_id
    place = local.step.output_path
    sentence = f"Step {local.step.name!r}: attempt {lease.attempt} of {owner} is running at {place}. Waiting."
    print(escape_control_characters(sentence), flush=True)


def _failure(local: LocalStep, lease: Lease | None) -> LocalStepFailedError:
    """Return the failure of the attempt in ``lease``."""
    attempt = read_attempt_or_none(local.step.output_path, lease.attempt) if lease else None
    failure = LocalStepFailedError(f"Step failed: {local.version_name}, output path {local.step.output_path}.")
    if attempt is not None and attempt.error is not None:
        failure.__cause__ = FunctionFailedError(attempt.error)
    return failure
