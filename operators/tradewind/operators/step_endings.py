"""How a step's job ended, in the words in which the lease is judged."""

from __future__ import annotations

from tradewind.plans.end import JobEnd
from tradewind.ray_jobs.endings import Ending, EndingKind
from tradewind.runtime.run_step import SUPERSEDED

_SIGNAL_BASE = 128
"""A shell adds this to the number of the signal that ended its command."""
_ENDS = {
    EndingKind.SUCCEEDED: JobEnd.SUCCEEDED,
    EndingKind.RUNTIME_ENV: JobEnd.FAILED_BY_ITSELF,
    EndingKind.INFEASIBLE: JobEnd.FAILED_BY_ITSELF,
    EndingKind.TIMED_OUT: JobEnd.FAILED_BY_ITSELF,
    EndingKind.QUEUE_TIMED_OUT: JobEnd.FAILED_BY_ITSELF,
    EndingKind.NOT_STARTED: JobEnd.NOT_STARTED,
    EndingKind.STOPPED: JobEnd.STOPPED,
}


def job_end(ending: Ending) -> JobEnd:
    """What an ending means for a turn. A driver that was killed is lost: the fault is not the step's."""
    if ending.exit_code == SUPERSEDED:
        return JobEnd.SUPERSEDED
    if ending.kind is EndingKind.USER_ERROR:
        was_killed = ending.exit_code is None or not 0 <= ending.exit_code < _SIGNAL_BASE
        return JobEnd.LOST if was_killed else JobEnd.FAILED_BY_ITSELF
    return _ENDS.get(ending.kind, JobEnd.LOST)


def process_ending(exit_code: int) -> Ending:
    """The ending of a driver that ran in the worker."""
    if exit_code == 0:
        return Ending(EndingKind.SUCCEEDED, "Its driver in the worker ended well.", exit_code)
    sentence = f"Its driver in the worker ended with exit code {exit_code} and without saying why."
    return Ending(EndingKind.USER_ERROR, sentence, exit_code)
