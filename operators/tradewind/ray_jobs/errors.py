"""What can be wrong between us and a Ray cluster. Messages name the cluster and say what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tradewind.ray_jobs.cluster import RayCluster


class RayJobsError(Exception):
    """Base of the errors of this package."""


class RayUnreachableError(RayJobsError):
    """The cluster does not answer. It says nothing about its jobs."""


class RayAuthenticationError(RayJobsError):
    """The cluster answers, but refuses the token."""


class RayJobRefusedError(RayJobsError):
    """The cluster refuses a job."""


class BadAddressError(RayJobsError, ValueError):
    """The address is no URL of a Ray dashboard."""


def token_refused(cluster: RayCluster) -> str:
    """The sentence for a 401 or 403."""
    return f"{cluster} refuses the token: put the right one into the password field of connection {cluster.name!r}."


def unreachable(cluster: RayCluster, error: Exception) -> str:
    """The sentence for a connection that failed."""
    return (
        f"{cluster} does not answer ({type(error).__name__}): start the cluster, or correct the host of connection "
        f"{cluster.name!r}."
    )
