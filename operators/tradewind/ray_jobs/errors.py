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


class RayTlsError(RayJobsError):
    """The two sides do not agree on TLS: one speaks it and the other does not, or the certificate is not trusted."""


class RayVersionError(RayJobsError):
    """The cluster's Ray is too old for what is asked of it."""


class RayJobRefusedError(RayJobsError):
    """The cluster refuses a job."""


class BadAddressError(RayJobsError, ValueError):
    """The address is no URL of a Ray dashboard."""


class BadTokenError(BadAddressError):
    """The connection's token cannot be had or used. The text never holds it."""


class BadRequestError(RayJobsError, ValueError):
    """A job that would not do what was meant; nothing is submitted. Trying again would not help."""


class ExposedSecretError(BadRequestError):
    """Something that looks like a secret stands where any API client can read it. The text never holds its value."""


class BadDependencyGroupError(BadRequestError):
    """An environment that cannot be built from the project: no such group, or the lock does not fit."""


def token_refused(cluster: RayCluster) -> str:
    """The sentence for a 401 or 403."""
    return f"{cluster} refuses the token: put the right one into the password field of connection {cluster.name!r}."


def unreachable(cluster: RayCluster, error: Exception) -> str:
    """The sentence for a connection that failed."""
    return (
        f"{cluster} does not answer ({type(error).__name__}): start the cluster, or correct the host of connection "
        f"{cluster.name!r}."
    )
