"""How a task ends whose Ray job did not end well: one exception type for each kind of ending."""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind


class RayJobError(AirflowException):
    """A Ray job did not end well; ``ending`` says how."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.sentence)
        self.ending = ending


class RayJobFailedError(RayJobError):
    """The entrypoint failed by itself. Trying again gives the same."""


class RayRuntimeEnvError(RayJobError):
    """The job's environment could not be made. Its entrypoint never ran."""


class RayInfeasibleError(RayJobError):
    """No node of the cluster could ever run the job."""


class RayJobStoppedError(RayJobError):
    """Somebody stopped the job."""


class RayJobTimedOutError(RayJobError):
    """The job took longer than ``timeout`` or waited longer than ``queue_timeout``, and was stopped."""


class RayJobLostError(RayJobError):
    """The job went down with its node or its cluster more often than it may. Airflow's retries try further."""


_TYPES: dict[EndingKind, type[RayJobError]] = {
    EndingKind.USER_ERROR: RayJobFailedError,
    EndingKind.RUNTIME_ENV: RayRuntimeEnvError,
    EndingKind.INFEASIBLE: RayInfeasibleError,
    EndingKind.STOPPED: RayJobStoppedError,
    EndingKind.TIMED_OUT: RayJobTimedOutError,
    EndingKind.QUEUE_TIMED_OUT: RayJobTimedOutError,
}

LOSSES = frozenset({EndingKind.PREEMPTED, EndingKind.HEAD_LOST, EndingKind.START_FAILED})
"""Endings that are the infrastructure's."""
MAX_LOSSES = 100
"""How many nodes or heads in a row a step or job may lose within one try."""
WORTH_ANOTHER_ATTEMPT = LOSSES | {EndingKind.NOT_STARTED}
"""Endings after which the next attempt follows within the same try."""


def job_error(ending: Ending, *, at_once: bool) -> RayJobError:
    """The exception for an ending that is not a success.

    With ``at_once``, Airflow does not retry what would only end in the same way again; without it, the task's retry
    policy decides.
    """
    kind = _TYPES.get(ending.kind, RayJobLostError)
    return _failing(kind)(ending) if at_once and ending.kind in _TYPES else kind(ending)


def _failing(kind: type[RayJobError]) -> type[RayJobError]:
    """``kind`` as an exception that Airflow does not retry; it is still caught as ``kind``."""
    return type(kind.__name__, (kind, AirflowFailException), {"__module__": kind.__module__, "__doc__": kind.__doc__})
