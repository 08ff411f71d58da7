"""Step driver: runs one attempt on the cluster under its lease and records how it ended.

``python -m tradewind.runtime.run_step ATTEMPT_FILE SPEC_SHA256`` is the entrypoint of the attempt's Ray job. The driver
exits at once with 77 if the file holds another spec. It is the lease owner: first it takes the lease over from the
claim, and if the lease names another job by then, it changes nothing. The function runs in children, one here or one on
each host of a slice, so that the driver can record their end in any case. It commits the lease last, after all files of
the result are in place.
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
"""Exit code of a driver that lost its lease (EX_TEMPFAIL of sysexits.h): its attempt does not count."""
NOTHING_LEFT = "tradewind: nothing that this attempt has started lives on."
"""The last line of such a driver if it knows that: then the next attempt need not wait."""
SIGNAL_TIMEOUT_S = 10.0


class ChildGaveUpError(StepRuntimeError):
    """The child could not continue, though its function did not fail."""


class ChildKilledError(StepRuntimeError):
    """A signal killed the child before its function returned or raised."""


class Stopped(BaseException):
    """A signal, or a stop request in the lease, asked the driver to stop."""


def main() -> int:
    """Run the attempt; the arguments are its file and the digest of its spec. Return the job's exit code."""
    attempt_file = sys.argv[1]
    try:
        attempt, spec = load_spec_from_argv(sys.argv[1:])
        _check_paths(attempt_file, attempt, spec)
        store, job, incarnation = LeaseStore(spec.output_path), attempt.job, uuid.uuid4().hex
        held = retry_store(lambda: store.take_over(job, incarnation))
    except (LeaseLostError, StoreError) as error:
        print(f"Superseded before it began: {error}")
        return SUPERSEDED
    except (SpecError, UnusablePathError, UnsupportedStoreError) as error:
        print(f"tradewind: {error}")
        return 1
    signal.signal(signal.SIGTERM, _raise_stopped)
    masker = Masker(exempt=[NOTHING_LEFT])
    with (
        LeaseFence(held.lease.times, _last_line(spec)) as fence,
        LeaseRenewer(store, held, partial(_end_work, fence), fence.note_renewal) as owner,
        capturing_output(attempt_folder(spec.output_path, attempt.number), masker),
    ):
        print(
            f"Step {spec.name!r}, version {spec.version}, attempt {attempt.number}: output goes to {spec.output_path}"
        )
        try:
            code = _code_of(attempt_file, attempt, spec, owner, fence.deadline, masker)
        except LeaseLostError:
            return _superseded(owner, spec)
    if attempt.cluster and owner.end is LeaseEndReason.STOP_REQUESTED:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(SIGNAL_TIMEOUT_S)  # Ray's stop follows the request in the lease, and shows the job as stopped
    return code


def _check_paths(attempt_file: str, attempt: Attempt, spec: StepSpec) -> None:
    """Refuse an attempt that would write outside its file's output path, or read outside all roots.

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
    attempt_file: str, attempt: Attempt, spec: StepSpec, owner: LeaseRenewer, deadline: LeaseDeadline, masker: Masker
) -> int:
    """Run ``attempt`` and record errors of this driver itself too; return the exit code.

    Raises:
        LeaseLostError: This driver no longer owns the lease, so it wrote nothing.
    """
    try:
        return run_attempt(attempt_file, attempt, spec, owner, deadline, masker)
    except LeaseLostError:
        raise
    except StoreError as error:
        print(f"tradewind: {error}, for {owner.fence_s:.0f} s: this attempt ends here.", flush=True)
        with suppress(StoreError):  # otherwise the lease expires
            stop_attempt(owner.finish, spec.output_path, attempt, AttemptOutcome.LOST)
        return SUPERSEDED
    except Exception as error:  # internal error: retrying would fail the same way
        described = AttemptError(type(error).__qualname__, str(error), traceback.format_exc())
        traceback.print_exc()
        return _failed(spec, ActiveAttempt(spec.output_path, attempt, owner), described, masker)


def run_attempt(
    attempt_file: str, attempt: Attempt, spec: StepSpec, owner: LeaseRenewer, deadline: LeaseDeadline, masker: Masker
) -> int:
    """Run ``attempt`` and record its end; return 0 when the function returned, 1 when it failed, 143 when stopped.

    ``masker`` learns the values of the step's secrets.

    Raises:
        LeaseLostError: This driver no longer owns the lease, so it wrote nothing.
        StoreError: The store has refused or not answered for too long.
    """
    active = ActiveAttempt(spec.output_path, attempt, owner)
    try:
        active = replace(active, attempt=owner.retry_store(lambda: _prepare(attempt, spec, owner.check)))
        error = _run_children(attempt_file, active.attempt, spec, owner, deadline, masker)
    except SpecChangedError as changed:
        print(f"Step {spec.name!r}: {changed}")
        active.stop(AttemptOutcome.LOST)
        return EXIT_SPEC_CHANGED
    except ChildGaveUpError as gave_up:
        print(f"Step {spec.name!r}: {gave_up}")
        active.stop(AttemptOutcome.LOST)
        return SUPERSEDED
    except ChildKilledError as killed:
        print(f"Step {spec.name!r}: {killed}")
        active.stop(AttemptOutcome.LOST, AttemptError("ProcessKilled", str(killed)))
        return SUPERSEDED
    except Stopped:
        if owner.end is LeaseEndReason.STOP_REQUESTED:
            print("A stop of this attempt was requested.")
        active.stop(AttemptOutcome.STOPPED)
        return 128 + signal.SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the function has ended: only its record is missing
    if error is not None:
        return _failed(spec, active, error, masker)
    try:
        active.commit()
    except InputChangedError as changed:
        print(f"Step {spec.name!r}: {changed}")
        active.stop(AttemptOutcome.LOST)
        return SUPERSEDED
    return 0


def _failed(spec: StepSpec, active: ActiveAttempt, error: AttemptError, masker: Masker) -> int:
    error = AttemptError(*map(masker.text, (error.type, error.message, error.traceback)))
    active.fail(error)
    print(f"Step {spec.name!r} failed: {error.type}: {error.message}")
    return 1


def _prepare(attempt: Attempt, spec: StepSpec, check_lease: Callable[[], None]) -> Attempt:
    """Remove leftovers of earlier attempts, except resumable files of a result that is not withdrawn."""
    check_lease()
    write_status(spec.output_path, Status.RUNNING)
    if attempt.number > 1:
        keep = () if attempt.withdraws else spec.resumable
        removed = remove_leftovers(spec.output_path, keep, check_lease, attempt.found)
        if removed:
            print(f"Removed {len(removed)} files of earlier attempts.")
    if not attempt.withdraws:
        return attempt
    return write_attempt(spec.output_path, replace(attempt, has_withdrawn=True))


def _superseded(owner: LeaseRenewer, spec: StepSpec) -> int:
    """Exit without writing to the record."""
    why = owner.end.value if owner.end else "it no longer owns its lease"
    print(f"This attempt ends here, because {why}: its output does not count.\n{_last_line(spec)}", flush=True)
    return SUPERSEDED


def _last_line(spec: StepSpec) -> str:
    """Return the last line of a driver that lost its lease; it knows nothing about processes on the hosts of a pod."""
    return "" if isinstance(spec.load_resources(), (TpuSlice, Hosts)) else NOTHING_LEFT


def _end_work(fence: LeaseFence, end: LeaseEndReason) -> None:
    """Exit at once if another attempt may own the lease; otherwise let the driver record its end."""
    if end in (LeaseEndReason.LOST, LeaseEndReason.FENCED):
        fence.end(end.value)
    os.kill(os.getpid(), signal.SIGTERM)


def _run_children(
    attempt_file: str, attempt: Attempt, spec: StepSpec, owner: LeaseRenewer, deadline: LeaseDeadline, masker: Masker
) -> AttemptError | None:
    command = [
        sys.executable,
        "-u",
        "-m",
        "tradewind.runtime.driver.run_function",
        *driver_arguments(attempt_file, attempt),
    ]
    try:
        MirrorSync(attempt.by, owner.heartbeat_s, owner).sync_all(spec.mirrors)
    except MirrorError as error:
        return AttemptError(type(error).__qualname__, f"Step {spec.name!r}: {error}")
    try:
        secrets = fetch_secrets(spec.secrets, f"Step {spec.name!r}")
    except (SecretError, SecretReferenceError) as error:
        return AttemptError(type(error).__qualname__, str(error))
    masker.add_secret(secrets.values())
    failure = _run_function(command, attempt, spec, owner, deadline, secrets)
    return failure or _named_by_secret(spec, secrets)


def _run_function(
    command: list[str],
    attempt: Attempt,
    spec: StepSpec,
    owner: LeaseRenewer,
    deadline: LeaseDeadline,
    secrets: Mapping[str, str],
) -> AttemptError | None:
    resources = spec.load_resources()
    if isinstance(resources, (TpuSlice, Hosts)):
        from tradewind.runtime.driver.pod_step import run_on_hosts  # it loads Ray

        return run_on_hosts(
            command, attempt, spec, resources, secrets, deadline, owner.fence_s, lambda: owner.renewed_at
        )
    preset = ON_CPU if isinstance(resources, (Cpu, HeadNode)) else {}
    code = run_guarded_child(
        command, {**preset, **os.environ, **secrets}, deadline, attempt if STDIN_ARGUMENT in command else None
    )
    if code == 0:
        return None
    left = owner.retry_store(lambda: read_error(spec.output_path, attempt.number))
    if code == EXIT_SPEC_CHANGED:
        raise SpecChangedError(CHANGED_LATER)
    if left is None and (why := give_up_reason(code)) is not None:
        raise ChildGaveUpError(why)
    if left is None and code is not None and code < 0:
        raise ChildKilledError(kill_reason(-code))
    return left or AttemptError("ProcessDied", f"the step's process ended with exit code {code}.")


def _named_by_secret(spec: StepSpec, secrets: Mapping[str, str]) -> AttemptError | None:
    """Return an error if a file's name, which the manifest would show, contains a secret of some length."""
    masker = Masker(value for value in secrets.values() if len(value) >= MIN_SECRET_CHARS)
    for file in list_files(spec.output_path) if secrets else ():
        if (masked := masker.text(file.path)) != file.path:
            return AttemptError(
                "SecretInFileNameError",
                f"Step {spec.name!r}: the output's file {masked!r} has the value of a secret in its name, which "
                "records would show: rename the file.",
            )
    return None


def _raise_stopped(signum: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would leave children that are being killed
    raise Stopped


if __name__ == "__main__":
    sys.exit(main())
