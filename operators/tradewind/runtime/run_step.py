"""The step driver: runs one attempt on the cluster under its lease and writes down how it ended.

Run as ``python -m tradewind.runtime.run_step ATTEMPT_FILE SPEC_SHA256``, as the entrypoint of the attempt's Ray job. It
ends at once, with 77, if that is not the spec in the file. It is the keeper of the turn: its first act is to take the
lease over from the claim, and if that names another job by now it touches nothing. The function runs in children (one
here, or one on each host of a slice), so that whatever happens to them, this process is there to say it. The lease is
committed last, after everything that counts is in place.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import NoReturn

from tradewind.attempts.renewal import ActiveAttempt, LeaseEndReason, LeaseRenewer
from tradewind.attempts.spec_digest import (
    CHANGED_LATER,
    EXIT_SPEC_CHANGED,
    STDIN_ARGUMENT,
    SpecChangedError,
    driver_arguments,
    load_spec_from_argv,
)
from tradewind.attempts.store_retry import retry_store
from tradewind.records.attempts import (
    Attempt,
    AttemptError,
    AttemptOutcome,
    attempt_folder,
    attempt_path,
    write_attempt,
)
from tradewind.records.cleanup import remove_leftovers
from tradewind.records.lease_store import LeaseStore
from tradewind.records.lifecycle import InputChangedError, stop_attempt
from tradewind.records.record import Status, write_status
from tradewind.runtime.driver.child import give_up_reason, kill_reason, read_error, run_guarded_child
from tradewind.runtime.driver.fencing import LeaseDeadline, LeaseFence
from tradewind.runtime.driver.log_capture import capturing_output
from tradewind.runtime.driver.process_guard import EXIT_DEADLINE
from tradewind.runtime.driver.secrets import fetch_secrets
from tradewind.runtime.mirror_copies import MirrorError
from tradewind.runtime.mirrors import MirrorSync
from tradewind.runtime.pods.process_env import ON_CPU
from tradewind.serialization.errors import SecretError, SpecError, StepRuntimeError
from tradewind.serialization.masking import MIN_SECRET_CHARS, Masker
from tradewind.serialization.spec import StepSpec
from tradewind.steps import Cpu, HeadNode, Hosts, SecretReferenceError, TpuSlice
from tradewind.storage import Roots, UnsupportedStoreError, UnusablePathError, resolve_location
from tradewind.storage.errors import LeaseLostError, StoreError
from tradewind.storage.trees import list_files

SUPERSEDED = EXIT_DEADLINE
"""Exit code of a driver whose turn is over (EX_TEMPFAIL of sysexits.h): what it did does not count."""
NOTHING_LEFT = "tradewind: nothing that this attempt has started lives on."
"""The last line of such a driver where it knows that: then the next attempt need not wait."""
SIGNAL_TIMEOUT_S = 10.0


class ChildGaveUpError(StepRuntimeError):
    """The child could not go on, without a fault of its function."""


class ChildKilledError(StepRuntimeError):
    """Something killed the child, before its function returned or raised."""


class Stopped(BaseException):
    """The driver was asked to stop, by a signal or by its keeper."""


def main() -> int:
    """Run the attempt whose file and spec's digest are the arguments; the exit code of the job."""
    attempt_file = sys.argv[1]
    try:
        attempt, spec = load_spec_from_argv(sys.argv[1:])
        _check_places(attempt_file, attempt, spec)
        store, job, incarnation = LeaseStore(spec.output_path), attempt.job, uuid.uuid4().hex
        held = retry_store(lambda: store.take_over(job, incarnation))
    except (LeaseLostError, StoreError) as error:
        print(f"Superseded before it began: {error}")
        return SUPERSEDED
    except (SpecError, UnusablePathError, UnsupportedStoreError) as error:
        print(f"tradewind: {error}")
        return 1
    signal.signal(signal.SIGTERM, _raise_stopped)
    masker = Masker(kept=[NOTHING_LEFT])
    with (
        LeaseFence(held.lease.times, _last_line(spec)) as cut_off,
        LeaseRenewer(store, held, partial(_end_work, cut_off), cut_off.renewed) as keeper,
        capturing_output(attempt_folder(spec.output_path, attempt.number), masker),
    ):
        print(
            f"Step {spec.name!r}, version {spec.version}, attempt {attempt.number}: output goes to {spec.output_path}"
        )
        try:
            code = _code_of(attempt_file, attempt, spec, keeper, cut_off.term, masker)
        except LeaseLostError:
            return _superseded(keeper, spec)
    if attempt.cluster and keeper.end is LeaseEndReason.STOP_REQUESTED:
        _await_signal()
    return code


def _check_places(attempt_file: str, attempt: Attempt, spec: StepSpec) -> None:
    """Refuse an attempt that would write elsewhere than where it lies, or read what lies below no root.

    Raises:
        SpecError: It would write elsewhere.
        UnusablePathError: It would read elsewhere.
    """
    is_given = attempt_file == STDIN_ARGUMENT
    if not is_given and resolve_location(attempt_path(spec.output_path, attempt.number)) != resolve_location(
        attempt_file
    ):
        raise SpecError(f"{attempt_file} is no attempt at {spec.output_path}: it was changed, or copied there.")
    if spec.roots:
        for path in attempt.inputs:
            Roots(spec.roots).check(path, f"{attempt_file}: inputs")


def _code_of(
    attempt_file: str, attempt: Attempt, spec: StepSpec, keeper: LeaseRenewer, term: LeaseDeadline, masker: Masker
) -> int:
    """Run ``attempt``; whatever goes wrong in this driver itself is recorded too.

    Raises:
        LeaseLostError: The turn is over, so nothing was written.
    """
    try:
        return run_attempt(attempt_file, attempt, spec, keeper, term, masker)
    except LeaseLostError:
        raise
    except StoreError as error:
        print(f"tradewind: {error}, for {keeper.fence_s:.0f} s: this attempt ends here.", flush=True)
        with suppress(StoreError):  # else its lease runs out
            stop_attempt(keeper.finish, spec.output_path, attempt, AttemptOutcome.LOST)
        return SUPERSEDED
    except Exception as error:  # ours, so it would only come again
        described = AttemptError(type(error).__qualname__, str(error), traceback.format_exc())
        traceback.print_exc()
        return _failed(spec, ActiveAttempt(spec.output_path, attempt, keeper), described, masker)


def run_attempt(
    attempt_file: str, attempt: Attempt, spec: StepSpec, keeper: LeaseRenewer, term: LeaseDeadline, masker: Masker
) -> int:
    """Run ``attempt`` and record its end; 0 when the function returned, 1 when it failed, 143 when it was stopped.

    ``masker`` learns the values of the step's secrets.

    Raises:
        LeaseLostError: The turn is over, so nothing was written.
        StoreError: The store has refused or been silent for too long.
    """
    turn = ActiveAttempt(spec.output_path, attempt, keeper)
    try:
        turn = replace(turn, attempt=keeper.retry_store(lambda: _prepared(attempt, spec, keeper.check)))
        error = _run_children(attempt_file, turn.attempt, spec, keeper, term, masker)
    except SpecChangedError as changed:
        print(f"Step {spec.name!r}: {changed}")
        turn.stop(AttemptOutcome.LOST)
        return EXIT_SPEC_CHANGED
    except ChildGaveUpError as gave_up:
        print(f"Step {spec.name!r}: {gave_up}")
        turn.stop(AttemptOutcome.LOST)
        return SUPERSEDED
    except ChildKilledError as killed:
        print(f"Step {spec.name!r}: {killed}")
        turn.stop(AttemptOutcome.LOST, AttemptError("ProcessKilled", str(killed)))
        return SUPERSEDED
    except Stopped:
        if keeper.end is LeaseEndReason.STOP_REQUESTED:
            print("Somebody asked this attempt to stop.")
        turn.stop(AttemptOutcome.STOPPED)
        return 128 + signal.SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the work is done: only its record is missing
    if error is not None:
        return _failed(spec, turn, error, masker)
    try:
        turn.commit()
    except InputChangedError as changed:
        print(f"Step {spec.name!r}: {changed}")
        turn.stop(AttemptOutcome.LOST)
        return SUPERSEDED
    return 0


def _failed(spec: StepSpec, turn: ActiveAttempt, error: AttemptError, masker: Masker) -> int:
    error = AttemptError(*map(masker.text, (error.type, error.message, error.traceback)))
    turn.fail(error)
    print(f"Step {spec.name!r} failed: {error.type}: {error.message}")
    return 1


def _prepared(attempt: Attempt, spec: StepSpec, check_turn: Callable[[], None]) -> Attempt:
    """Remove what earlier attempts left, except what the step goes on from; nothing of a result that is withdrawn."""
    check_turn()
    write_status(spec.output_path, Status.RUNNING)
    if attempt.number > 1:
        keep = () if attempt.withdraws else spec.resumable
        removed = remove_leftovers(spec.output_path, keep, check_turn, attempt.found)
        if removed:
            print(f"Removed {len(removed)} files of earlier attempts.")
    if not attempt.withdraws:
        return attempt
    return write_attempt(spec.output_path, replace(attempt, has_withdrawn=True))


def _await_signal() -> None:
    """Who asked us to stop through the lease tells Ray next: then the job reads as stopped there, not as failed."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(SIGNAL_TIMEOUT_S)


def _superseded(keeper: LeaseRenewer, spec: StepSpec) -> int:
    """End without a word in the record."""
    why = keeper.end.value if keeper.end else "its turn is over"
    print(f"This attempt ends here, because {why}: its output does not count.\n{_last_line(spec)}", flush=True)
    return SUPERSEDED


def _last_line(spec: StepSpec) -> str:
    """What a driver knows of what it started when its turn is over: of the hosts of a pod it knows nothing."""
    return "" if isinstance(spec.load_resources(), (TpuSlice, Hosts)) else NOTHING_LEFT


def _end_work(cut_off: LeaseFence, end: LeaseEndReason) -> None:
    """Let a driver that may still write its end do so; one whose turn others have, or may have, ends at once."""
    if end in (LeaseEndReason.LOST, LeaseEndReason.FENCED):
        cut_off.end(end.value)
    os.kill(os.getpid(), signal.SIGTERM)


def _run_children(
    attempt_file: str, attempt: Attempt, spec: StepSpec, keeper: LeaseRenewer, term: LeaseDeadline, masker: Masker
) -> AttemptError | None:
    command = [
        sys.executable,
        "-u",
        "-m",
        "tradewind.runtime.driver.run_function",
        *driver_arguments(attempt_file, attempt),
    ]
    try:
        MirrorSync(attempt.by, keeper.heartbeat_s, keeper).sync_all(spec.mirrors)
    except MirrorError as error:
        return AttemptError(type(error).__qualname__, f"Step {spec.name!r}: {error}")
    try:
        secrets = fetch_secrets(spec.secrets, f"Step {spec.name!r}")
    except (SecretError, SecretReferenceError) as error:
        return AttemptError(type(error).__qualname__, str(error))
    masker.add_secret(secrets.values())
    failure = _run_function(command, attempt, spec, keeper, term, secrets)
    return failure or _named_by_secret(spec, secrets)


def _run_function(
    command: list[str],
    attempt: Attempt,
    spec: StepSpec,
    keeper: LeaseRenewer,
    term: LeaseDeadline,
    secrets: Mapping[str, str],
) -> AttemptError | None:
    resources = spec.load_resources()
    if isinstance(resources, (TpuSlice, Hosts)):
        from tradewind.runtime.driver.pod_step import run_on_hosts  # it loads Ray

        return run_on_hosts(command, attempt, spec, resources, secrets, term, keeper.fence_s, lambda: keeper.renewed_at)
    preset = ON_CPU if isinstance(resources, (Cpu, HeadNode)) else {}
    code = run_guarded_child(
        command, {**preset, **os.environ, **secrets}, term, attempt if STDIN_ARGUMENT in command else None
    )
    if code == 0:
        return None
    left = keeper.retry_store(lambda: read_error(spec.output_path, attempt.number))
    if code == EXIT_SPEC_CHANGED:
        raise SpecChangedError(CHANGED_LATER)
    if left is None and (why := give_up_reason(code)) is not None:
        raise ChildGaveUpError(why)
    if left is None and code is not None and code < 0:
        raise ChildKilledError(kill_reason(-code))
    return left or AttemptError("ProcessDied", f"the step's process ended with exit code {code}.")


def _named_by_secret(spec: StepSpec, secrets: Mapping[str, str]) -> AttemptError | None:
    """What is wrong when a file's name, which the manifest would hold, has a secret in it, and not by chance."""
    masker = Masker(value for value in secrets.values() if len(value) >= MIN_SECRET_CHARS)
    for file in list_files(spec.output_path) if secrets else ():
        if (shown := masker.text(file.path)) != file.path:
            return AttemptError(
                "SecretInFileNameError",
                f"Step {spec.name!r}: the output's file {shown!r} has the value of a secret in its name, which records "
                "would show: name it otherwise.",
            )
    return None


def _raise_stopped(signum: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would leave children behind that are being ended
    raise Stopped


if __name__ == "__main__":
    sys.exit(main())
