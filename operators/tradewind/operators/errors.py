"""How a step's task ends when the step did not."""

from airflow.sdk.exceptions import AirflowException, AirflowFailException


class StepFailedError(AirflowFailException):
    """The step's function failed. Airflow does not retry it: its retries are for the infrastructure."""


class StepStoppedError(AirflowFailException):
    """Somebody stopped the step's job."""


class StepLostError(AirflowException):
    """The step's job is gone without a word. Airflow's next try makes a new attempt."""


class StepBusyError(AirflowException):
    """The step is at work where this task cannot follow it. Airflow's next try looks again."""


class ClusterUnreachableError(AirflowException):
    """The step's cluster does not answer. Airflow's next try asks again."""


class ClusterRefusedError(AirflowFailException):
    """The step's cluster cannot be used: no connection, no valid address, a refused token or a refused job."""


class PlanOutdatedError(AirflowFailException):
    """What the run's plan says no longer holds: the step's config was edited, or an input is not there."""
