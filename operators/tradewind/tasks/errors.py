"""Exceptions of a task whose step failed, or cannot run as it is."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tradewind.cloud_tpu.slice_types import UnknownSliceTypeError
from tradewind.ray_jobs.errors import BadAddressError, BadRequestError, RayJobsError, RayUnreachableError
from tradewind.records.discovery import OccupiedFolderError
from tradewind.records.lease import Lease, UnreadableLeaseError
from tradewind.serialization.errors import StepRuntimeError
from tradewind.steps import ExperimentError
from tradewind.storage import UnsupportedStoreError, UnusablePathError
from tradewind.storage.errors import RecordTooLargeError, StoreUnavailableError

_BAD_INPUT = (
    ExperimentError,
    StepRuntimeError,
    BadAddressError,
    BadRequestError,
    UnknownSliceTypeError,
    UnsupportedStoreError,
    UnusablePathError,
    OccupiedFolderError,
    RecordTooLargeError,
)


class BadInputError(AirflowFailException):
    """The experiment cannot run as it is. A retry does not help."""


class StepFailedError(AirflowFailException):
    """The step's function failed. Airflow does not retry it: its retries are for the infrastructure."""


class AdoptedFailureError(AirflowException):
    """Another task's attempt failed while this task waited for it. Airflow's next try makes a new attempt."""


InheritedFailureError = AdoptedFailureError


class StepStoppedError(AirflowFailException):
    """A user stopped the step's job."""


class StepTimedOutError(AirflowFailException):
    """The attempt exceeded the task's ``execution_timeout`` and was stopped. Retries would multiply its cost."""


class StepLostError(AirflowException):
    """The step's job disappeared without a result. Airflow's next try makes a new attempt."""


class StoreSilentError(AirflowException):
    """The store with the outputs does not answer. Airflow's next try reads it again."""


StoreTimeoutError = StoreSilentError


class ClusterUnreachableError(AirflowException):
    """The step's cluster does not answer. Airflow's next try contacts it again."""


class ClusterRefusedError(AirflowFailException):
    """The step's cluster is unusable: no connection, no valid address, a refused token or a refused job."""


class PlanOutdatedError(AirflowFailException):
    """The run's plan is outdated: the step's config was edited, or an input is missing."""


class UnnamedDeploymentError(AirflowFailException):
    """A task of this name runs in an Airflow that may be this one or another: one of the two has no name."""


@contextmanager
def failing_without_retry() -> Iterator[None]:
    """Fail a task on bad input without using its retries."""
    try:
        yield
    except _BAD_INPUT as error:
        raise BadInputError(str(error)) from error


@contextmanager
def translated_store_errors(subject: str) -> Iterator[None]:
    """Add the ``subject``, such as a step, to errors of the store.

    Raises:
        StoreSilentError: The store does not answer.
        BadInputError: A lease there cannot be read; a retry does not help.
    """
    try:
        yield
    except UnreadableLeaseError as error:
        raise BadInputError(f"{subject}: {error}") from error
    except StoreUnavailableError as error:
        raise StoreSilentError(f"{subject}: {error}") from error


@contextmanager
def translated_cluster_errors(subject: str) -> Iterator[None]:
    """Add the ``subject``, such as a step, to errors of the cluster. Only an unreachable cluster is worth a retry.

    Raises:
        ClusterUnreachableError: The cluster does not answer.
        ClusterRefusedError: The connection is missing, or the cluster refuses the token or the job.
    """
    try:
        yield
    except RayUnreachableError as error:
        raise ClusterUnreachableError(f"{subject}: {error}") from error
    except RayJobsError as error:
        raise ClusterRefusedError(f"{subject}: {error}") from error


def unnamed_deployment(name: str, lease: Lease, by: Mapping[str, Any]) -> UnnamedDeploymentError:
    """Return the error for an attempt at version ``name`` that may or may not be this task's."""
    theirs, ours = (repr(each.get("deployment") or "(no name)") for each in (lease.by, by))
    return UnnamedDeploymentError(
        f"Attempt {lease.attempt} at {name} is in progress in a task of the same name, claimed by the Airflow "
        f"{theirs}. This is the Airflow {ours}, so the attempt may be another task's. Where several Airflows share a "
        "prefix, set `[tradewind] deployment` to a name of its own in each of them. Then, or if this run was deleted "
        "and created again, clear this task when that attempt has ended."
    )
