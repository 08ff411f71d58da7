"""What follows the end of a step's job, row by row as the protocol has it."""

from __future__ import annotations

import pytest

from tradewind.records.leases.lease import Lease, Phase
from tradewind.turns.end import JobEnd, Verdict, judge_end


def lease(phase: Phase | None, job: str = "job", asked: bool = False) -> Lease:
    return Lease("w", 0.0, phase, 2, job, stop_requested={"try": 1} if asked else None)


@pytest.mark.parametrize("end", list(JobEnd))
def test_a_lease_that_is_about_another_attempt_means_starting_over_first_of_all(end: JobEnd) -> None:
    for phase in Phase:
        assert judge_end(lease(phase, "another"), "job", end) is Verdict.START_OVER
    assert judge_end(None, "job", end) is Verdict.START_OVER


@pytest.mark.parametrize("end", list(JobEnd))
def test_a_committed_lease_is_green_whatever_ray_says(end: JobEnd) -> None:
    assert judge_end(lease(Phase.COMMITTED), "job", end) is Verdict.GREEN


@pytest.mark.parametrize("end", list(JobEnd))
def test_a_failed_lease_is_the_functions_failure_whatever_ray_says(end: JobEnd) -> None:
    assert judge_end(lease(Phase.FAILED), "job", end) is Verdict.FAILED


ROWS = {
    "stopped, as somebody asked through the lease": (JobEnd.STOPPED, Phase.STOPPED, True, Verdict.STOPPED),
    "stopped through the lease, and Ray calls that lost": (JobEnd.LOST, Phase.STOPPED, True, Verdict.STOPPED),
    "stopped by Ray itself, in good order": (JobEnd.STOPPED, Phase.STOPPED, False, Verdict.STOPPED),
    "its node was taken away, and it ended in good order": (JobEnd.LOST, Phase.STOPPED, False, Verdict.NEXT),
    "an input changed while it was at work": (JobEnd.SUPERSEDED, Phase.STOPPED, False, Verdict.NEXT),
    "Ray says SUCCEEDED, the lease running": (JobEnd.SUCCEEDED, Phase.RUNNING, False, Verdict.CONTRADICTION),
    "Ray says SUCCEEDED, the lease claimed": (JobEnd.SUCCEEDED, Phase.CLAIMED, False, Verdict.CONTRADICTION),
    "lost before it had a keeper": (JobEnd.LOST, Phase.CLAIMED, False, Verdict.NEXT),
    "lost while it ran: something may live on": (JobEnd.LOST, Phase.RUNNING, False, Verdict.WAIT_UNTIL_STALE),
    "its keeper ended itself without the store": (JobEnd.SUPERSEDED, Phase.RUNNING, False, Verdict.WAIT_UNTIL_STALE),
    "superseded before it had a keeper": (JobEnd.SUPERSEDED, Phase.CLAIMED, False, Verdict.NEXT),
    "its keeper ended itself and all that it had started": (JobEnd.CHILDREN_ENDED, Phase.RUNNING, False, Verdict.NEXT),
    "the same, and the store took its last word": (JobEnd.CHILDREN_ENDED, Phase.STOPPED, False, Verdict.NEXT),
    "the environment cannot be built": (JobEnd.FAULTY, Phase.CLAIMED, False, Verdict.FAULTY_JOB),
    "it fits nowhere, says Ray, while it runs": (JobEnd.FAULTY, Phase.RUNNING, False, Verdict.WAIT_UNTIL_STALE),
    "queued for too long inside Ray": (JobEnd.NOT_STARTED, Phase.CLAIMED, False, Verdict.NEXT),
    "stopped while it queued": (JobEnd.STOPPED, Phase.CLAIMED, True, Verdict.STOPPED),
    "killed by Ray while it ran": (JobEnd.STOPPED, Phase.RUNNING, True, Verdict.STOPPED),
    "a lease of Marin's took its place": (JobEnd.LOST, None, False, Verdict.START_OVER),
}


@pytest.mark.parametrize(("end", "phase", "asked", "verdict"), ROWS.values(), ids=ROWS)
def test_the_lease_decides_and_ray_only_where_it_leaves_that_open(
    end: JobEnd, phase: Phase | None, asked: bool, verdict: Verdict
) -> None:
    assert judge_end(lease(phase, asked=asked), "job", end) is verdict


@pytest.mark.parametrize("end", [end for end in JobEnd if end is not JobEnd.SUCCEEDED])
def test_nothing_is_green_without_a_commit(end: JobEnd) -> None:
    for phase in (None, Phase.CLAIMED, Phase.RUNNING, Phase.FAILED, Phase.STOPPED):
        assert judge_end(lease(phase), "job", end) is not Verdict.GREEN
