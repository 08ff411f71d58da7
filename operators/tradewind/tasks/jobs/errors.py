"""Exceptions of a task whose Ray job did not succeed: one type per kind of ending."""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind


class RayJobError(AirflowException):
    """A Ray job did not succeed; ``ending`` holds its ending."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.sentence)
        self.ending = ending


class RayJobFailedError(RayJobError):
    """The entrypoint itself failed. A retry would fail the same way."""


class RayRuntimeEnvError(RayJobError):
    """Ray could not create the job's environment. Its entrypoint never ran."""


class RayInfeasibleError(RayJobError):
    """No node of the cluster can ever run the job."""


class RayJobStoppedError(RayJobError):
    """A user or another process stopped the job."""


class RayJobTimedOutError(RayJobError):
    """The job exceeded ``timeout`` or ``queue_timeout`` and was stopped."""


class RayJobLostError(RayJobError):
    """The job was lost with its node or its cluster more often than allowed. Airflow's retries continue."""


_TYPES: dict[EndingKind, type[RayJobError]] = {
    EndingKind.USER_ERROR: RayJobFailedError,
    EndingKind.RUNTIME_ENV: RayRuntimeEnvError,
    EndingKind.INFEASIBLE: RayInfeasibleError,
    EndingKind.STOPPED: RayJobStoppedError,
    EndingKind.TIMED_OUT: RayJobTimedOutError,
    EndingKind.QUEUE_TIMED_OUT: RayJobTimedOutError,
}

LOSSES = frozenset({EndingKind.PREEMPTED, EndingKind.HEAD_LOST, EndingKind.START_FAILED})
"""Endings that the infrastructure causes."""
MAX_LOSSES = 100
"""How many consecutive nodes or heads a step or job may lose within one try."""


def job_error(ending: Ending, *, at_once: bool) -> RayJobError:
    """Return the exception for an ending that is not a success.

    With ``at_once``, Airflow does not retry an ending that would repeat; otherwise the task's retry policy decides.
    """
    kind = _TYPES.get(ending.kind, RayJobLostError)
    return _failing(kind)(ending) if at_once and ending.kind in _TYPES else kind(ending)


def _failing(kind: type[RayJobError]) -> type[RayJobError]:
    """Return ``kind`` as an exception that Airflow does not retry; ``except kind`` still catches it."""
    return type(kind.__name__, (kind, AirflowFailException), {"__module__": kind.__module__, "__doc__": kind.__doc__})
