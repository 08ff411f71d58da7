"""Next actions after a step's job ends, one case per row of the protocol."""

from __future__ import annotations

import pytest

from tradewind.attempts.decisions import JobResult, NextAction, next_action
from tradewind.records.lease import Lease, Phase


def lease(phase: Phase | None, job: str = "job", is_requested: bool = False) -> Lease:
    return Lease("w", 0.0, phase, 2, job, stop_requested={"try": 1} if is_requested else None)


@pytest.mark.parametrize("end", list(JobResult))
def test_lease_of_other_job_or_final_phase_decides_alone(end: JobResult) -> None:
    for phase in Phase:
        assert next_action(lease(phase, "another"), "job", end) is NextAction.START_OVER
    for replaced in (None, lease(None)):  # no lease, or one of Marin's
        assert next_action(replaced, "job", end) is NextAction.START_OVER
    assert next_action(lease(Phase.COMMITTED), "job", end) is NextAction.SUCCEED
    assert next_action(lease(Phase.FAILED), "job", end) is NextAction.FAILED


CLAIMED, RUNNING, STOPPED = Phase.CLAIMED, Phase.RUNNING, Phase.STOPPED
ROWS = {
    "stopped through the lease": (JobResult.STOPPED, STOPPED, True, NextAction.STOPPED),
    "stopped through the lease, lost in Ray": (JobResult.LOST, STOPPED, True, NextAction.STOPPED),
    "stopped gracefully by Ray": (JobResult.STOPPED, STOPPED, False, NextAction.STOPPED),
    "preempted gracefully": (JobResult.LOST, STOPPED, False, NextAction.NEXT_ATTEMPT),
    "input changed": (JobResult.SUPERSEDED, STOPPED, False, NextAction.NEXT_ATTEMPT),
    "spec changed, stopped": (JobResult.SPEC_CHANGED, STOPPED, False, NextAction.SPEC_CHANGED),
    "spec changed, claimed": (JobResult.SPEC_CHANGED, CLAIMED, False, NextAction.SPEC_CHANGED),
    "succeeded in Ray, running": (JobResult.SUCCEEDED, RUNNING, False, NextAction.CONTRADICTION),
    "succeeded in Ray, claimed": (JobResult.SUCCEEDED, CLAIMED, False, NextAction.CONTRADICTION),
    "lost before it had an owner": (JobResult.LOST, CLAIMED, False, NextAction.NEXT_ATTEMPT),
    "lost while it ran": (JobResult.LOST, RUNNING, False, NextAction.WAIT_UNTIL_STALE),
    "fenced": (JobResult.SUPERSEDED, RUNNING, False, NextAction.WAIT_UNTIL_STALE),
    "superseded before it had an owner": (JobResult.SUPERSEDED, CLAIMED, False, NextAction.NEXT_ATTEMPT),
    "fenced, no children left": (JobResult.CHILDREN_ENDED, RUNNING, False, NextAction.NEXT_ATTEMPT),
    "fenced, no children left, recorded": (JobResult.CHILDREN_ENDED, STOPPED, False, NextAction.NEXT_ATTEMPT),
    "environment cannot be built": (JobResult.UNRUNNABLE, CLAIMED, False, NextAction.UNRUNNABLE_JOB),
    "infeasible while it runs": (JobResult.UNRUNNABLE, RUNNING, False, NextAction.WAIT_UNTIL_STALE),
    "queued too long inside Ray": (JobResult.NOT_STARTED, CLAIMED, False, NextAction.NEXT_ATTEMPT),
    "stopped while it queued": (JobResult.STOPPED, CLAIMED, True, NextAction.STOPPED),
    "killed by Ray while it ran": (JobResult.STOPPED, RUNNING, True, NextAction.STOPPED),
}


@pytest.mark.parametrize(("end", "phase", "is_requested", "action"), ROWS.values(), ids=ROWS)
def test_next_action_follows_lease_before_ray_ending(
    end: JobResult, phase: Phase, is_requested: bool, action: NextAction
) -> None:
    assert next_action(lease(phase, is_requested=is_requested), "job", end) is action


@pytest.mark.parametrize("end", list(JobResult))
def test_task_never_succeeds_without_commit(end: JobResult) -> None:
    for phase in (None, CLAIMED, RUNNING, Phase.FAILED, STOPPED):
        assert next_action(lease(phase), "job", end) is not NextAction.SUCCEED
