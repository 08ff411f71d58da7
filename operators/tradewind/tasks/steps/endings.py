"""How a step's job ended, in the words in which the lease is judged."""

from __future__ import annotations

from tradewind.ray_jobs.follow.endings import Ending, EndingKind
from tradewind.runtime.run_step import NOTHING_LEFT, SUPERSEDED
from tradewind.turns.claimed import CHANGED
from tradewind.turns.end import JobEnd

_ENDS = {
    EndingKind.SUCCEEDED: JobEnd.SUCCEEDED,
    EndingKind.RUNTIME_ENV: JobEnd.FAULTY,
    EndingKind.INFEASIBLE: JobEnd.FAULTY,
    EndingKind.TIMED_OUT: JobEnd.FAULTY,
    EndingKind.QUEUE_TIMED_OUT: JobEnd.FAULTY,
    EndingKind.NOT_STARTED: JobEnd.NOT_STARTED,
    EndingKind.STOPPED: JobEnd.STOPPED,
}


def job_end(ending: Ending) -> JobEnd:
    """What an ending means for a turn. What Ray calls the user's error is the driver's here, and so a loss."""
    if ending.exit_code == CHANGED:
        return JobEnd.CHANGED
    if ending.exit_code == SUPERSEDED:
        return JobEnd.CHILDREN_ENDED if ending.last_lines[-1:] == (NOTHING_LEFT,) else JobEnd.SUPERSEDED
    return _ENDS.get(ending.kind, JobEnd.LOST)


def process_ending(exit_code: int) -> Ending:
    """The ending of a driver that ran in the worker."""
    if exit_code == 0:
        return Ending(EndingKind.SUCCEEDED, "Its driver in the worker ended well.", exit_code)
    sentence = f"Its driver in the worker ended with exit code {exit_code} and without saying why."
    return Ending(EndingKind.USER_ERROR, sentence, exit_code)
