"""Errors between a client and a Ray cluster. Messages name the cluster and the next step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from tradewind.text import escape_control_characters, single_line

if TYPE_CHECKING:
    from tradewind.ray_jobs.cluster import RayCluster


class RayJobsError(Exception):
    """Base of the errors of this package. Names from outside in a message cannot control a terminal."""

    def __init__(self, message: str) -> None:
        super().__init__(escape_control_characters(message))


class RayUnreachableError(RayJobsError):
    """The cluster does not answer. This says nothing about its jobs."""


class RayAuthenticationError(RayJobsError):
    """The cluster answers, but refuses the token."""


class RayTlsError(RayJobsError):
    """TLS failed: only one side uses it, or the client does not trust the certificate."""


class RayVersionError(RayJobsError):
    """The cluster's Ray or Python is too old for the requested operation."""


class RayJobRefusedError(RayJobsError):
    """The cluster refuses a job."""


class BadAddressError(RayJobsError, ValueError):
    """The address is no URL of a Ray dashboard."""


class BadTokenError(BadAddressError):
    """The connection's token is unavailable or unusable. The text never holds it."""


class BadRequestError(RayJobsError, ValueError):
    """The job would not do what its caller intends; nothing is submitted. Retrying does not help."""


class ExposedSecretError(BadRequestError):
    """A field that any API client can read looks like a secret. The text never holds its value."""


class BadDependencyGroupError(BadRequestError):
    """The environment cannot be built from the project: no such group, or the lock does not match."""


def token_refused(cluster: RayCluster) -> str:
    """Return the message for a 401 or 403."""
    return f"{cluster} refuses the token: put the right one into the password field of connection {cluster.name!r}."


def check_redirect(cluster: RayCluster, status: int, headers: Mapping[str, str]) -> None:
    """Raise ``RayUnreachableError`` for a redirect, which no client follows, since it would pass the token on."""
    if 300 <= status < 400:
        location = _without_secrets(headers.get("Location", ""))
        raise RayUnreachableError(
            f"{cluster} answers with a redirect ({status}) to {location}. It was not followed: correct the host of "
            f"connection {cluster.name!r}, or let the ingress in front of the dashboard pass requests on."
        )


def _without_secrets(url: str) -> str:
    """Return ``url`` without user, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an invalid address"
    shown = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    return single_line(shown) or "no address"


def unreachable(cluster: RayCluster, error: Exception) -> str:
    """Return the message for a failed connection."""
    return (
        f"{cluster} does not answer ({type(error).__name__}): start the cluster, or correct the host of connection "
        f"{cluster.name!r}."
    )
