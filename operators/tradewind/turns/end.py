"""What follows when the job of a turn has ended: the lease decides, Ray's word only where the lease leaves it open.

First of all, the lease must still be about the attempt that was followed: if it is not, somebody has gone on without
this task, and it starts over.
"""

from __future__ import annotations

from enum import Enum

from tradewind.records.leases.lease import Lease, Phase


class JobEnd(Enum):
    """How a job ended, as far as it matters here."""

    SUCCEEDED = "succeeded"
    """Its driver ended with 0."""
    FAULTY = "faulty"
    """Trying again would end in the same way: its environment cannot be made, or it fits nowhere."""
    SUPERSEDED = "superseded"
    """Its driver ended because its turn was over."""
    CHILDREN_ENDED = "children ended"
    """The same, and it reports that all that it had started has ended."""
    NOT_STARTED = "not started"
    """It never ran; it can queue again."""
    CHANGED = "changed"
    """What it was to run is not what was claimed, so it ran nothing."""
    STOPPED = "stopped"
    """Somebody stopped it."""
    LOST = "lost"
    """It went down with its node, its head or its driver, or nobody knows. Also a driver that fails by itself: what a
    function raises is in the lease, and a driver that never held it may have died with its node."""


class Verdict(Enum):
    """What the task that followed the job does."""

    GREEN = "green"
    """The output is a result."""
    FAILED = "failed"
    """The function failed: the attempt's file says how."""
    STOPPED = "stopped"
    """It was stopped, and not by somebody else's task."""
    START_OVER = "start over"
    """Look at the record again, at once."""
    WAIT_UNTIL_STALE = "wait until stale"
    """Something of it may live on: the next attempt follows when its lease has run out."""
    NEXT = "next"
    """Nothing of it runs: this task ends the turn and makes the next attempt."""
    FAULTY_JOB = "faulty job"
    """This task ends the turn: the job can never run as it is."""
    CHANGED = "changed"
    """The spec was changed after the claim: this task ends the turn and fails; the step is not marked as failed."""
    CONTRADICTION = "contradiction"
    """The job says that it succeeded and the lease that it is at work: neither is believed."""


def judge_end(lease: Lease | None, job: str, end: JobEnd) -> Verdict:
    """Decide after the end of ``job``, whose lease reads ``lease`` now."""
    if lease is None or lease.job != job:
        return Verdict.START_OVER
    match lease.phase:
        case Phase.COMMITTED:
            return Verdict.GREEN
        case Phase.FAILED:
            return Verdict.FAILED
        case Phase.STOPPED:
            return _of_stopped(lease, end)
        case Phase.CLAIMED:
            return _of_claimed(end)
        case Phase.RUNNING:
            return _of_running(end)
    return Verdict.START_OVER


def _of_stopped(lease: Lease, end: JobEnd) -> Verdict:
    """Its driver ended in good order: asked to, because its node was taken away, or because it had to give up."""
    if end is JobEnd.CHANGED:
        return Verdict.CHANGED
    was_asked = lease.stop_requested is not None or end is JobEnd.STOPPED
    return Verdict.STOPPED if was_asked else Verdict.NEXT


def _of_claimed(end: JobEnd) -> Verdict:
    """Its driver never became its keeper, and never will: an id is submitted once."""
    match end:
        case JobEnd.FAULTY:
            return Verdict.FAULTY_JOB
        case JobEnd.STOPPED:
            return Verdict.STOPPED
        case JobEnd.SUCCEEDED:
            return Verdict.CONTRADICTION
        case JobEnd.CHANGED:
            return Verdict.CHANGED
    return Verdict.NEXT


def _of_running(end: JobEnd) -> Verdict:
    """Its driver went without a word. Ray stops a job only when somebody asks it to."""
    match end:
        case JobEnd.SUCCEEDED:
            return Verdict.CONTRADICTION
        case JobEnd.STOPPED:
            return Verdict.STOPPED
        case JobEnd.CHILDREN_ENDED:
            return Verdict.NEXT
    return Verdict.WAIT_UNTIL_STALE
