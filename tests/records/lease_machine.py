"""Hypothesis state machine: claimers, followers, lease owners, readers and users of one lease.

See ``lease_model`` for the test environment, which checks each change of the lease; the invariants check the state
after every step. A function's process may outlive its lease owner: the process guard, or later the kernel, kills it
when the last renewal is too old. Until then it writes files of the same name in each attempt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import fsspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.records.lease_model import OUTPUT, Environment, Fate, ModelFiles, Process, running
from tradewind.attempts.decisions import Claim, Finished, Reattach, RerunRequest, TaskIdentity, decide_start
from tradewind.attempts.renewal import LeaseEndReason, LeaseRenewer
from tradewind.records.attempts import Attempt, AttemptError, AttemptOutcome
from tradewind.records.cleanup import remove_leftovers
from tradewind.records.lease import Lease, LeaseTimes, Phase
from tradewind.records.lease_store import HeldLease, LeaseStore
from tradewind.records.lifecycle import (
    claim_attempt,
    commit_attempt,
    complete_commit,
    fail_attempt,
    next_attempt_number,
    stop_attempt,
)
from tradewind.records.record import Record, RecordState, Status, read_status, write_status
from tradewind.storage.errors import LeaseLostError, StoreError

DATA = f"{OUTPUT}/data"
RUNS = ("one", "two", "three")
SKEWS_S = (0.0, -300.0, 300.0)
PAUSES_S = (1.0, 10.0, 29.0, 31.0, 61.0, 74.0, 91.0, 200.0)
PICKS = st.integers(0, 99)
REQUESTS = st.sampled_from([40, 40, 40, 1, 2, 3, 4, 5, 8])
"""Number of a process's requests that the store answers in a row; most often all of them."""
FATES = st.sampled_from(Fate)
BAD_FATES = st.sampled_from([fate for fate in Fate if fate is not Fate.ANSWERED])


@dataclass
class Job:
    """A job in Ray's table, which Ray may start late, twice, or never."""

    attempt: Attempt
    starts: int = 0


@dataclass
class Child:
    """The process of a function, which the kernel kills by ``killed_at`` of its machine's clock."""

    attempt: Attempt
    times: LeaseTimes
    clock: Callable[[], float]
    killed_at: float = math.inf
    has_ended: bool = False

    def renewed(self, at: float) -> None:
        """Record when the lease owner began its last renewal."""
        self.killed_at = at + self.times.kill_s

    @property
    def is_alive(self) -> bool:
        """Return whether the process may still write."""
        return not self.has_ended and self.clock() < self.killed_at

    def write(self) -> None:
        """Write a file that has the same name in every attempt."""
        files().put_now(DATA, self.attempt.job)


@dataclass
class Driver:
    """State of one process of a job."""

    process: Process
    renewer: LeaseRenewer | None = None
    renewal: Process | None = None
    is_at_work: bool = False
    is_writing: bool = False
    end_reason: LeaseEndReason | None = None
    ending: str = ""

    def end_work(self, end: LeaseEndReason) -> None:
        self.end_reason = end

    @property
    def believes_it_owns(self) -> bool:
        """Return whether the function runs and no stop request has reached it."""
        renewer = self.renewer
        is_held = renewer is not None and renewer.end in (None, LeaseEndReason.STOP_REQUESTED) and not renewer.is_over
        return self.is_at_work and is_held and not self.process.ended


class LeaseMachine(RuleBasedStateMachine):
    """The rules that change the test environment."""

    make_store: ClassVar[type[LeaseStore]] = LeaseStore
    make_renewer: ClassVar[type[LeaseRenewer]] = LeaseRenewer

    def __init__(self) -> None:
        super().__init__()
        self.environment = Environment()
        self.jobs: list[Job] = []
        self.drivers: list[Driver] = []
        self.children: list[Child] = []
        self.tries: dict[str, Process] = {}
        self.numbers = 0

    def teardown(self) -> None:
        for process in self.environment.processes:
            with suppress(AssertionError):
                process.kill()

    # ---- start and end of processes

    def spawn(
        self, run: Callable[[Process], None], answered: int, incarnation: str | None = None, job: str = ""
    ) -> Process:
        skew_s = SKEWS_S[len(self.environment.processes) % len(SKEWS_S)]
        process = Process(self.environment, run, skew_s, incarnation, job)
        self.environment.processes.append(process)
        process.resume()
        resume(process, answered)
        return process

    def active(self) -> list[Process]:
        return [process for process in self.environment.processes if not process.ended]

    def recent_job(self, pick: int) -> Job:
        return self.jobs[-1 - pick % min(3, len(self.jobs))]

    @initialize(events=st.integers(0, 4), answered=REQUESTS)
    def earlier_events(self, events: int, answered: int) -> None:
        if events > 0:
            self.try_starts("two", False, answered if answered < 4 else 1)
            self.try_starts("one", False, 40 if events > 1 else answered)
        if events > 1 and self.jobs:
            self.follower_renews(0, answered)
            self.job_starts(0, 40 if events > 2 else answered)
        if events > 3 and self.owning():
            self.function_ends_and_last_write_fails(0, "returns", False, Fate.ANSWERED)

    @rule(run=st.sampled_from(RUNS), seconds=st.sampled_from((31.0, 61.0, 74.0, 91.0, 100.0)), answered=REQUESTS)
    def later_try_starts(self, run: str, seconds: float, answered: int) -> None:
        self.environment.time += seconds
        known = len(self.jobs)
        self.try_starts(run, False, 40)
        if len(self.jobs) > known:
            self.job_starts(0, answered)

    @precondition(lambda self: self.active())
    @rule(pick=PICKS, answered=REQUESTS)
    def process_continues(self, pick: int, answered: int) -> None:
        resume(self.active()[pick % len(self.active())], answered)

    @precondition(lambda self: self.active())
    @rule(backwards=st.booleans())
    def all_processes_continue(self, backwards: bool) -> None:
        for process in self.active()[:: -1 if backwards else 1]:
            resume(process, 10)

    @precondition(lambda self: self.active())
    @rule(pick=PICKS, fate=BAD_FATES)
    def request_fails(self, pick: int, fate: Fate) -> None:
        self.active()[pick % len(self.active())].resume(fate)

    @rule(seconds=st.sampled_from(PAUSES_S))
    def time_passes(self, seconds: float) -> None:
        self.environment.time += seconds

    @precondition(lambda self: self.environment.late)
    @rule(pick=PICKS)
    def late_write_arrives(self, pick: int) -> None:
        with suppress(FileNotFoundError):
            self.environment.late.pop(pick % len(self.environment.late))()

    # ---- claimers

    @rule(run=st.sampled_from(RUNS), clears=st.booleans(), answered=REQUESTS)
    def try_starts(self, run: str, clears: bool, answered: int) -> None:
        before = self.tries.get(run)
        if before is None or before.ended:
            lease = self.environment.lease
            was_made = clears and lease is not None and lease.phase is Phase.COMMITTED
            rerun = RerunRequest(was_reused=True, planned_attempt=lease.attempt) if was_made else RerunRequest()
            self.numbers += 1
            by = {"dag": "d", "run": run, "task": "t", "map_index": -1, "try": self.numbers, "max_tries": 3}
            self.tries[run] = self.spawn(lambda process: self.try_(process, TaskIdentity(by), rerun), answered)

    def try_(self, process: Process, task: TaskIdentity, rerun: RerunRequest) -> None:
        store = process.store(self.make_store)
        held = store.read()
        record = Record(None, held.lease, held.age_s, has_output=True) if held else Record()
        start = decide_start(record, task, rerun)
        if isinstance(start, Finished) and start.lease is not None:
            complete_commit(OUTPUT, start.lease)
        if isinstance(start, Claim) or (isinstance(start, Reattach) and self.was_not_submitted(start.lease)):
            process.may_withdraw = rerun.planned_attempt if rerun.was_reused else None
            self.claim(process, store, held, task.by, isinstance(start, Claim) and start.withdraws)

    def was_not_submitted(self, lease: Lease) -> bool:
        return lease.phase is Phase.CLAIMED and all(one.attempt.job != lease.job for one in self.jobs)

    def claim(
        self, process: Process, store: LeaseStore, over: HeldLease | None, by: dict[str, Any], withdraws: bool
    ) -> None:
        number = next_attempt_number(OUTPUT, over.lease if over else None)
        attempt = Attempt(number, f"job-{number}-{by['try']}", "", by, {}, withdraws=withdraws)
        if claim_attempt(store, OUTPUT, over, attempt, "v", 30.0) is not None:
            self.jobs.append(Job(attempt))  # Ray starts the submitted job later, or never

    # ---- jobs, their lease owners and their followers

    @precondition(lambda self: self.jobs)
    @rule(pick=PICKS, answered=REQUESTS)
    def job_starts(self, pick: int, answered: int) -> None:
        job = self.recent_job(pick)
        if job.starts < 2:
            job.starts += 1
            self.numbers += 1
            incarnation = f"renewer-{self.numbers}"
            self.spawn(lambda process: self.drive(process, job.attempt), answered, incarnation, job.attempt.job)

    def drive(self, process: Process, attempt: Attempt) -> None:
        assert process.incarnation is not None
        driver = Driver(process)
        self.drivers.append(driver)
        store = process.store(self.make_store)
        held = store.take_over(attempt.job, process.incarnation)
        process.pause()  # the process may be frozen here
        child = Child(attempt, held.lease.times, store.clock)
        renewer = driver.renewer = self.make_renewer(store, held, driver.end_work, child.renewed)
        child.renewed(held.written_at)
        process.must_end = lambda: renewer.is_over
        driver.is_at_work = True
        if not self.prepare(attempt, renewer):
            driver.is_at_work = False
            return
        self.children.append(child)
        while not driver.end_reason and not driver.ending:
            process.pause()
        driver.is_at_work = False
        if driver.ending and child.is_alive:
            child.write()
        child.has_ended = True  # its guard has killed it and reports this
        while True:
            with suppress(StoreError):
                return self.write_end(driver, renewer, attempt)

    def prepare(self, attempt: Attempt, renewer: LeaseRenewer) -> bool:
        """Remove leftovers, as a driver does before its function runs; return False if it gives up."""
        try:
            write_status(OUTPUT, Status.RUNNING)
            if attempt.number > 1:
                remove_leftovers(OUTPUT, (), renewer.check)
        except (StoreError, LeaseLostError):
            return False
        return True

    def write_end(self, driver: Driver, renewer: LeaseRenewer, attempt: Attempt) -> None:
        def finish(**changes: Any) -> HeldLease:
            while driver.renewal is not None and not driver.renewal.ended:
                driver.process.pause()  # the lease owner's lock
            driver.is_writing = True
            try:
                return renewer.finish(**changes)
            finally:
                driver.is_writing = False

        if driver.end_reason is LeaseEndReason.STOP_REQUESTED or driver.end_reason is LeaseEndReason.FENCED:
            stop_attempt(finish, OUTPUT, attempt, AttemptOutcome.STOPPED)
        elif driver.ending == "raises":
            fail_attempt(finish, OUTPUT, attempt, AttemptError("ValueError", "no"))
        else:
            commit_attempt(finish, OUTPUT, attempt, lambda: None)  # must not count after a lost lease

    @precondition(lambda self: any(child.is_alive for child in self.children))
    @rule(pick=PICKS)
    def function_writes(self, pick: int) -> None:
        """Write a file, also when owner and guard are dead or frozen, until the kernel kills the process."""
        living = [child for child in self.children if child.is_alive]
        child, lease = living[pick % len(living)], self.environment.lease
        assert lease and lease.attempt == child.attempt.number, "an old function writes beside a new attempt"
        child.write()

    def owning(self) -> list[Driver]:
        return [one for one in self.drivers if one.renewer is not None and not one.process.ended]

    @precondition(lambda self: self.owning())
    @rule(pick=PICKS, answered=REQUESTS)
    def owner_renews(self, pick: int, answered: int) -> None:
        driver = self.owning()[pick % len(self.owning())]
        renewer = driver.renewer
        if renewer is not None and not driver.is_writing and (driver.renewal is None or driver.renewal.ended):
            driver.renewal = self.spawn(lambda _: renewer.check_lease(), answered, driver.process.incarnation)

    @precondition(lambda self: self.owning())
    @rule(pick=PICKS)
    def owner_checks_clock(self, pick: int) -> None:
        renewer = self.owning()[pick % len(self.owning())].renewer
        assert renewer is not None
        renewer.fence()

    @precondition(lambda self: self.owning())
    @rule(pick=PICKS, how=st.sampled_from(["returns", "returns", "raises"]), answered=REQUESTS, then=FATES)
    def function_ends(self, pick: int, how: str, answered: int, then: Fate) -> None:
        driver = self.owning()[-1 - pick % len(self.owning())]
        driver.ending = how
        resume(driver.process, answered)
        if not driver.process.ended:
            driver.process.resume(then)

    @precondition(lambda self: self.owning())
    @rule(pick=PICKS, how=st.sampled_from(["returns", "returns", "raises"]), is_sent=st.booleans(), fate=FATES)
    def function_ends_and_last_write_fails(self, pick: int, how: str, is_sent: bool, fate: Fate) -> None:
        driver = self.owning()[-1 - pick % len(self.owning())]
        driver.ending = how
        for _ in range(20):
            if not driver.process.ended and not driver.is_writing:
                driver.process.resume()
        if is_sent and not driver.process.ended:
            driver.process.resume()
        if fate is not Fate.ANSWERED and not driver.process.ended:
            driver.process.resume(fate)

    @precondition(lambda self: self.jobs)
    @rule(pick=PICKS, answered=REQUESTS)
    def follower_renews(self, pick: int, answered: int) -> None:
        job = self.recent_job(pick).attempt.job

        def renew(process: Process) -> None:
            store = process.store(self.make_store)
            held = store.read()
            if held is not None and held.lease.job == job and held.lease.phase is Phase.CLAIMED:
                store.change(held)

        self.spawn(renew, answered)

    # ---- readers and users

    @precondition(lambda self: self.environment.commits)
    @rule(answered=REQUESTS)
    def reader_completes_commit(self, answered: int) -> None:
        def read(process: Process) -> None:
            held = process.store(self.make_store).read()
            if held is not None and held.lease.phase is Phase.COMMITTED:
                complete_commit(OUTPUT, held.lease)

        self.spawn(read, answered)

    @precondition(lambda self: self.jobs)
    @rule(pick=PICKS, phase=st.sampled_from([None, None, Phase.STOPPED, Phase.FAILED]), answered=REQUESTS)
    def job_is_stopped_or_its_end_written(self, pick: int, phase: Phase | None, answered: int) -> None:
        job = self.recent_job(pick).attempt.job

        def stop(process: Process) -> None:
            store = process.store(self.make_store)
            if phase is None:
                store.request_stop(job, {"try": 1})
            else:
                store.end_unstarted(job, phase)

        self.spawn(stop, answered)

    # ---- invariants

    @invariant()
    def at_most_one_owner_believes_it_owns(self) -> None:
        believers = [driver for driver in self.drivers if driver.believes_it_owns]
        assert len(believers) <= 1, "two owners at once"

    @invariant()
    def output_counts_only_with_committed_lease(self) -> None:
        assert running.process is None
        lease = self.environment.lease
        record = Record(read_status(OUTPUT), lease, self.environment.lease_age_s, has_output=True)
        is_committed = lease is not None and lease.phase is Phase.COMMITTED
        assert (record.state is RecordState.FINISHED) is is_committed
        assert not is_committed or lease == self.environment.commits[-1]
        if lease is not None and is_committed:
            assert files().text_of(DATA) == lease.job, "the files of a result are another attempt's, or gone"


def files() -> ModelFiles:
    model: ModelFiles = fsspec.filesystem("model")
    return model


def resume(process: Process, answered: int) -> None:
    for _ in range(answered):
        if not process.ended:
            process.resume()
