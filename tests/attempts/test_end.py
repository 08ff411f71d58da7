"""Next actions after a step's job ends, one case per row of the protocol."""

from __future__ import annotations

import pytest

from tradewind.attempts.decisions import JobResult, NextAction, next_action
from tradewind.records.lease import Lease, Phase


def lease(phase: Phase | None, job: str = "job", asked: bool = False) -> Lease:
    return Lease("w", 0.0, phase, 2, job, stop_requested={"try": 1} if asked else None)


@pytest.mark.parametrize("end", list(JobResult))
def test_lease_of_another_attempt_starts_over(end: JobResult) -> None:
    for phase in Phase:
        assert next_action(lease(phase, "another"), "job", end) is NextAction.START_OVER
    assert next_action(None, "job", end) is NextAction.START_OVER


@pytest.mark.parametrize("end", list(JobResult))
def test_a_committed_lease_is_green_whatever_ray_says(end: JobResult) -> None:
    assert next_action(lease(Phase.COMMITTED), "job", end) is NextAction.SUCCEED


@pytest.mark.parametrize("end", list(JobResult))
def test_failed_lease_is_function_failure_for_any_ray_ending(end: JobResult) -> None:
    assert next_action(lease(Phase.FAILED), "job", end) is NextAction.FAILED


ROWS = {
    "stopped, as somebody asked through the lease": (JobResult.STOPPED, Phase.STOPPED, True, NextAction.STOPPED),
    "stopped through the lease, and Ray calls that lost": (JobResult.LOST, Phase.STOPPED, True, NextAction.STOPPED),
    "stopped by Ray itself, in good order": (JobResult.STOPPED, Phase.STOPPED, False, NextAction.STOPPED),
    "its node was taken away, and it ended in good order": (
        JobResult.LOST,
        Phase.STOPPED,
        False,
        NextAction.NEXT_ATTEMPT,
    ),
    "an input changed while it was at work": (JobResult.SUPERSEDED, Phase.STOPPED, False, NextAction.NEXT_ATTEMPT),
    "Ray says SUCCEEDED, the lease running": (JobResult.SUCCEEDED, Phase.RUNNING, False, NextAction.CONTRADICTION),
    "Ray says SUCCEEDED, the lease claimed": (JobResult.SUCCEEDED, Phase.CLAIMED, False, NextAction.CONTRADICTION),
    "lost before it had a keeper": (JobResult.LOST, Phase.CLAIMED, False, NextAction.NEXT_ATTEMPT),
    "lost while it ran: something may live on": (JobResult.LOST, Phase.RUNNING, False, NextAction.WAIT_UNTIL_STALE),
    "its keeper ended itself without the store": (
        JobResult.SUPERSEDED,
        Phase.RUNNING,
        False,
        NextAction.WAIT_UNTIL_STALE,
    ),
    "superseded before it had a keeper": (JobResult.SUPERSEDED, Phase.CLAIMED, False, NextAction.NEXT_ATTEMPT),
    "its keeper ended itself and all that it had started": (
        JobResult.CHILDREN_ENDED,
        Phase.RUNNING,
        False,
        NextAction.NEXT_ATTEMPT,
    ),
    "the same, and the store took its last word": (
        JobResult.CHILDREN_ENDED,
        Phase.STOPPED,
        False,
        NextAction.NEXT_ATTEMPT,
    ),
    "the environment cannot be built": (JobResult.UNRUNNABLE, Phase.CLAIMED, False, NextAction.UNRUNNABLE_JOB),
    "it fits nowhere, says Ray, while it runs": (
        JobResult.UNRUNNABLE,
        Phase.RUNNING,
        False,
        NextAction.WAIT_UNTIL_STALE,
    ),
    "queued for too long inside Ray": (JobResult.NOT_STARTED, Phase.CLAIMED, False, NextAction.NEXT_ATTEMPT),
    "stopped while it queued": (JobResult.STOPPED, Phase.CLAIMED, True, NextAction.STOPPED),
    "killed by Ray while it ran": (JobResult.STOPPED, Phase.RUNNING, True, NextAction.STOPPED),
    "a lease of Marin's took its place": (JobResult.LOST, None, False, NextAction.START_OVER),
}


@pytest.mark.parametrize(("end", "phase", "asked", "verdict"), ROWS.values(), ids=ROWS)
def test_next_action_follows_lease_before_ray_ending(
    end: JobResult, phase: Phase | None, asked: bool, verdict: NextAction
) -> None:
    assert next_action(lease(phase, asked=asked), "job", end) is verdict


@pytest.mark.parametrize("end", [end for end in JobResult if end is not JobResult.SUCCEEDED])
def test_nothing_is_green_without_a_commit(end: JobResult) -> None:
    for phase in (None, Phase.CLAIMED, Phase.RUNNING, Phase.FAILED, Phase.STOPPED):
        assert next_action(lease(phase), "job", end) is not NextAction.SUCCEED
