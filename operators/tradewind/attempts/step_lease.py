"""Lease and attempts of one step, for its task: read the record, claim the next attempt, end an attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tradewind.records.attempts import (
    Attempt,
    AttemptError,
    AttemptOutcome,
    read_attempt_or_none,
    step_job_id,
    utc_now,
)
from tradewind.records.discovery import list_preexisting_files
from tradewind.records.info_files import write_step_info
from tradewind.records.lease import HEARTBEAT_S, Lease, Phase, check_readable
from tradewind.records.lease_store import HeldLease, LeaseStore
from tradewind.records.lifecycle import (
    claim_attempt,
    end_abandoned_attempt,
    end_unstarted_attempt,
    input_digests,
    next_attempt_number,
)
from tradewind.records.record import Record, RecordState, read_record, read_records
from tradewind.serialization.spec import StepSpec
from tradewind.steps import ResolvedStep
from tradewind.storage import NO_ROOTS, Roots
from tradewind.storage.errors import RecordsError


class MissingInputError(RecordsError):
    """An output that a step reads is no result; ``at_work`` is the lease of the attempt that makes it, if one does."""

    def __init__(self, message: str, output_path: str, at_work: Lease | None) -> None:
        super().__init__(message)
        self.output_path = output_path
        self.at_work = at_work


@dataclass(frozen=True)
class ClaimedAttempt:
    """An attempt that this task claimed, and its lease."""

    held: HeldLease
    attempt: Attempt


class StepLease:
    """Reads and changes the record of one step for one task.

    Args:
        step: The step.
        by: How the task's claims name it.
        heartbeat_s: Seconds between the renewals by the lease owner.
        will_claim: Called with the job of every claim before it is made.
        roots: Parents of all paths that the step writes and reads; the spec passes them to the driver, which has no
            configuration.
    """

    def __init__(
        self,
        step: ResolvedStep,
        by: Mapping[str, Any],
        heartbeat_s: float = HEARTBEAT_S,
        will_claim: Callable[[str], None] = lambda job: None,
        roots: Roots = NO_ROOTS,
    ) -> None:
        self.step = step
        self.by = dict(by)
        self.path = step.output_path
        self.name = step.version_name
        self.store = LeaseStore(step.output_path)
        self._heartbeat_s = heartbeat_s
        self._will_claim = will_claim
        self._roots = roots

    def read(self) -> Record:
        """Return the record.

        Raises:
            UnreadableLeaseError: Its lease cannot be read.
        """
        record = read_record(self.path)
        check_readable(self.path, record.lease)
        return record

    def claim(
        self,
        over: Lease | None,
        make_spec: Callable[[], StepSpec],
        *,
        withdraws: bool = False,
        cluster: str = "",
        code_commit: str | None = None,
    ) -> ClaimedAttempt | None:
        """Claim the next attempt; None if the lease is no longer ``over``, or the inputs changed meanwhile.

        All checks that can refuse come before the first write. After the claim this method reads the inputs again:
        garbage collection sees only from then on that this attempt reads them.

        Raises:
            MissingInputError: An input is no result.
            UnreadableLeaseError: The lease of an input cannot be read.
            OccupiedFolderError: The output's folder holds outputs of other steps, or too many pre-existing files.
            SpecError: The step cannot be serialized for the cluster.
        """
        inputs = self._inputs()
        spec = replace(make_spec(), roots=self._roots.paths)
        current = self.store.read()
        if (current.lease if current else None) != over:
            return None
        number = next_attempt_number(self.path, over)
        attempt = Attempt(
            number,
            step_job_id(self.step.name, self.path, self.step.hash, number),
            cluster,
            self.by,
            spec.to_json(),
            inputs=inputs,
            found=list_preexisting_files(self.path, over),
            withdraws=withdraws,
            code_commit=code_commit,
            started_at=utc_now(),
        )
        self._will_claim(attempt.job)
        held = claim_attempt(self.store, self.path, current, attempt, self.step.digest, self._heartbeat_s)
        if held is None:
            return None
        if not self._still_reads(inputs):
            self.end_unstarted(attempt.job, AttemptOutcome.LOST)
            return None
        write_step_info(self.step, spec.fn_name)
        return ClaimedAttempt(held, attempt)

    def attempt(self, number: int) -> Attempt | None:
        """Return an attempt, or None if its file is gone or cannot be read."""
        return read_attempt_or_none(self.path, number)

    def end_unstarted(self, job: str, outcome: AttemptOutcome, error: AttemptError | None = None) -> bool:
        """End an attempt whose job never owned the lease; False if it does after all."""
        return end_unstarted_attempt(self.store, self.path, job, outcome, error)

    def stop(self, lease: Lease) -> None:
        """Ask the lease owner of an attempt without a Ray job to stop; end the attempt if no process owns it yet."""
        self.store.request_stop(lease.job, self.by)
        self.end_unstarted(lease.job, AttemptOutcome.STOPPED)

    def end_lost_attempt(self, lease: Lease) -> bool:
        """End an attempt of which no process survives; False if another one holds the lease by now."""
        held = self.store.read()
        if held is None or not held.lease.is_same_attempt(lease):
            return False
        if lease.phase is Phase.RUNNING:
            return end_abandoned_attempt(self.store, self.path, held)
        return self.end_unstarted(lease.job, AttemptOutcome.LOST)

    def has_inputs_of(self, number: int) -> bool:
        """Whether attempt ``number`` read the inputs as they are now."""
        attempt = self.attempt(number)
        return attempt is not None and dict(attempt.inputs) == _digests_of_finished(self._input_records())

    def _inputs(self) -> Mapping[str, str | None]:
        records = self._input_records()
        needed = {dependency.output_path for dependency in self.step.needed}
        for path, record in records.items():
            is_at_work = record.state is RecordState.AT_WORK
            if record.state is RecordState.FINISHED or not (is_at_work or path in needed):
                continue
            check_readable(path, record.lease)
            names = {dependency.output_path: dependency.name for dependency in self.step.dependencies}
            raise MissingInputError(
                f"Step {self.step.name!r} reads step {names[path]!r}, which has no finished output at {path}.",
                path,
                record.lease if is_at_work else None,
            )
        return _digests_of_finished(records)

    def _still_reads(self, inputs: Mapping[str, str | None]) -> bool:
        return _digests_of_finished(self._input_records()) == dict(inputs)

    def _input_records(self) -> dict[str, Record]:
        return read_records(list(dict.fromkeys(dependency.output_path for dependency in self.step.dependencies)))


def _digests_of_finished(records: Mapping[str, Record]) -> Mapping[str, str | None]:
    """Return the digests of the finished inputs; an input without one is absent, and the step runs without it."""
    return input_digests({path: record for path, record in records.items() if record.state is RecordState.FINISHED})


def describe_claimer(by: Mapping[str, Any]) -> str:
    """Describe the claimer of an attempt for a log line."""
    return f"task {by.get('task')} of run {by.get('run')} of {by.get('dag')}" if "run" in by else str(dict(by))
