"""The step driver: runs one attempt on the cluster and writes down how it ended.

Run as ``python -m tradewind.runtime.run_step ATTEMPT_FILE``, as the entrypoint of the attempt's Ray job. The function
runs in children (one here, or one on each host of a slice), so that whatever happens to them, this process is there to
say it. SUCCESS is written last, after everything else is in place.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from tradewind.records.attempts import Attempt, AttemptError, Outcome, attempt_folder, end_attempt, read_attempt
from tradewind.records.status import Status, write_status
from tradewind.records.store import list_names, read_json
from tradewind.runtime.errors import SecretError, SpecError
from tradewind.runtime.kept_output import kept_output
from tradewind.runtime.pod_env import ON_CPU
from tradewind.runtime.process_guard import guarded
from tradewind.runtime.run_function import error_path
from tradewind.runtime.secrets import fetch_secrets
from tradewind.runtime.spec import StepSpec
from tradewind.steps import Cpu, HeadNode, SecretReferenceError, TpuSlice

LOOK_INTERVAL_S = 5.0
"""How often the driver looks whether its attempt was ended from outside."""
SUPERSEDED = 75
"""Exit code of a driver whose attempt was ended from outside (EX_TEMPFAIL of sysexits.h)."""


class Stopped(BaseException):
    """The job was asked to stop."""


def main() -> int:
    """Run the attempt whose file is the only argument; the exit code of the job."""
    attempt_file = sys.argv[1]
    attempt = read_attempt(attempt_file)
    if attempt is None:
        raise SpecError(f"There is no attempt file at {attempt_file}.")
    spec = StepSpec.from_json(attempt.spec)
    signal.signal(signal.SIGTERM, _raise_stopped)
    with kept_output(attempt_folder(spec.output_path, attempt.number)):
        print(
            f"Step {spec.name!r}, version {spec.version}, attempt {attempt.number}: output goes to {spec.output_path}"
        )
        return run_attempt(attempt_file, attempt, spec)


def run_attempt(attempt_file: str, attempt: Attempt, spec: StepSpec) -> int:
    """Run ``attempt`` and record its end; 0 when the function returned, 1 when it failed, 143 when it was stopped.

    An attempt that was ended from outside meanwhile, because it seemed to be lost, writes nothing more: 75.
    """
    write_status(spec.output_path, Status.RUNNING)
    try:
        with ended_from_outside_stops(attempt_file):
            error = _run_children(attempt_file, attempt, spec)
    except Stopped:
        if _is_open(attempt_file):
            end_attempt(spec.output_path, attempt, Outcome.STOPPED)
        return 128 + signal.SIGTERM
    if not _is_open(attempt_file):
        print(f"Attempt {attempt.number} was ended from outside: its output does not count.")
        return SUPERSEDED
    if error is not None:
        end_attempt(spec.output_path, attempt, Outcome.FAILED, error)
        write_status(spec.output_path, Status.FAILED)
        print(f"Step {spec.name!r} failed: {error.type}: {error.message}")
        return 1
    end_attempt(spec.output_path, attempt, Outcome.SUCCEEDED)
    write_status(spec.output_path, Status.SUCCESS)
    return 0


@contextmanager
def ended_from_outside_stops(attempt_file: str) -> Iterator[None]:
    """For the length of the block, stop this process soon after somebody else has written an end of the attempt."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(LOOK_INTERVAL_S):
            if not _is_open(attempt_file):
                print("This attempt was ended from outside: stopping.", flush=True)
                os.kill(os.getpid(), signal.SIGTERM)
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


def _is_open(attempt_file: str) -> bool:
    """Whether nobody has written an end of the attempt; a store that does not answer does not say so."""
    try:
        attempt = read_attempt(attempt_file)
    except Exception as error:  # whatever the store's client raises
        print(f"The attempt's record cannot be read ({type(error).__name__}); going on.", flush=True)
        return True
    return attempt is None or attempt.outcome is None


def _run_children(attempt_file: str, attempt: Attempt, spec: StepSpec) -> AttemptError | None:
    command = [sys.executable, "-u", "-m", "tradewind.runtime.run_function", attempt_file]
    resources = spec.load_resources()
    try:
        secrets = fetch_secrets(spec.secrets, f"Step {spec.name!r}")
    except (SecretError, SecretReferenceError) as error:
        return AttemptError(type(error).__qualname__, str(error))
    if isinstance(resources, TpuSlice):
        from tradewind.runtime.pods import PodFailedError, run_on_slice

        folder = attempt_folder(spec.output_path, attempt.number)
        try:
            run_on_slice(command, resources.slice_type, env=secrets, log_dir=folder)
        except PodFailedError as error:
            return _left_error(attempt, spec) or AttemptError(type(error).__qualname__, str(error))
        return None
    preset = ON_CPU if isinstance(resources, (Cpu, HeadNode)) else {}
    code = _run_here(command, {**preset, **os.environ, **secrets})
    if code == 0:
        return None
    return _left_error(attempt, spec) or AttemptError("ProcessDied", f"the step's process ended with {_ending(code)}.")


def _run_here(command: list[str], env: Mapping[str, str]) -> int:
    """Run the child under a guard, which ends it and all that it started when this driver stops or dies."""
    guard = subprocess.Popen(guarded(command, watch=[]), env=env, start_new_session=True)
    try:
        return guard.wait()
    except BaseException:
        guard.terminate()
        guard.wait()
        raise


def _left_error(attempt: Attempt, spec: StepSpec) -> AttemptError | None:
    """The error that a child left behind, the lowest rank first."""
    names = list_names(attempt_folder(spec.output_path, attempt.number))
    ranks = sorted(int(name[len("error-") : -len(".json")]) for name in names if name.startswith("error-"))
    for rank in ranks:
        fields = read_json(error_path(spec.output_path, attempt.number, rank))
        if fields is not None:
            return AttemptError(**fields)
    return None


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _raise_stopped(signum: int, frame: FrameType | None) -> NoReturn:
    raise Stopped


if __name__ == "__main__":
    sys.exit(main())
