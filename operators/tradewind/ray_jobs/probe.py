"""Check once whether a cluster that a user has just configured answers and accepts the token.

Blocking, with a short timeout and no retries. Its messages never hold the token.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import requests

from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import (
    RayAuthenticationError,
    RayJobsError,
    RayUnreachableError,
    check_redirect,
    unreachable,
)

TIMEOUT_S = 10.0
_VERSION = re.compile(r"\d[\w.+-]{0,63}", re.ASCII)
_ALIVE = "detail=0&limit=10000&filter_keys=state&filter_predicates=%3D&filter_values=ALIVE"


@dataclass(frozen=True)
class ClusterInfo:
    """Result of one check.

    Attributes:
        ray_version: The cluster's version of Ray.
        nodes: Number of its live nodes.
        asks_for_token: Whether it refuses clients without a token.
    """

    ray_version: str
    nodes: int
    asks_for_token: bool

    def sentence(self, cluster: RayCluster, ray_version_here: str | None = None) -> str:
        """Return the result as a sentence."""
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        token = "it asks for no token"
        if self.asks_for_token:
            token = "token accepted"
        elif cluster.token:
            token = "it asks for no token, so the connection's is not needed"
        differs = ray_version_here is not None and ray_version_here != self.ray_version
        here = f" Airflow has Ray {ray_version_here}: the same version is safest." if differs else ""
        return f"{cluster} runs Ray {self.ray_version} on {nodes}; {token}.{here}"


def check_connection(cluster: RayCluster) -> ClusterInfo:
    """Check ``cluster``.

    Raises:
        RayUnreachableError: The cluster does not answer, or another server than a Ray dashboard answers.
        RayAuthenticationError: The cluster requires a token, or another one.
        RayJobsError: Its TLS certificate is not trusted.
    """
    with requests.Session() as session:
        first = _get(session, cluster, "/api/version", with_token=False)
        check_redirect(cluster, first.status_code, first.headers)
        asks = first.status_code in (401, 403)
        answer = _get(session, cluster, "/api/version", with_token=True)
        _check_token(answer.status_code, cluster)
        version = version_in(_json(answer, cluster))
        if version is None:
            raise RayUnreachableError(_no_dashboard(cluster))
        found = _json(_get(session, cluster, f"/api/v0/nodes?{_ALIVE}", with_token=True), cluster)
        try:
            return ClusterInfo(version, int(found["data"]["result"]["num_filtered"]), asks)
        except (LookupError, TypeError, ValueError):
            raise RayUnreachableError(_no_dashboard(cluster)) from None


def version_in(answer: Any) -> str | None:
    """Return the version of Ray in a dashboard's response; None if it is not a response of Ray."""
    return _version(answer, "ray_version")


def python_version_in(metadata: Any) -> str | None:
    """Return the head's version of Python in the cluster's metadata; None if they do not say."""
    return _version(metadata.get("data") if isinstance(metadata, dict) else None, "pythonVersion")


def _version(fields: Any, name: str) -> str | None:
    version = fields.get(name) if isinstance(fields, dict) else None
    return version if isinstance(version, str) and _VERSION.fullmatch(version) else None


def _get(session: requests.Session, cluster: RayCluster, path: str, *, with_token: bool) -> requests.Response:
    url = cluster.address.rstrip("/") + path
    headers = cluster.headers if with_token else {}
    try:
        return session.get(
            url,
            headers=headers,
            timeout=TIMEOUT_S,
            verify=cluster.verify,  # per request: a session's setting yields to REQUESTS_CA_BUNDLE
            allow_redirects=False,
            auth=lambda request: request,  # else requests would add a ``.netrc`` entry
        )
    except requests.exceptions.SSLError as error:
        raise RayJobsError(f"{cluster}: {tls_problem(error)}") from None
    except OSError as error:  # includes a missing CA bundle
        raise RayUnreachableError(unreachable(cluster, error)) from None


def _check_token(status: int, cluster: RayCluster) -> None:
    if status in (401, 403):
        given = "refuses the connection's token" if cluster.token else "asks for a token, and the connection has none"
        raise RayAuthenticationError(
            f"{cluster} {given}: fill in one of the password, token file and token secret of connection "
            f"{cluster.name!r}."
        )


def _json(answer: requests.Response, cluster: RayCluster) -> dict[str, Any]:
    try:
        fields = answer.json() if answer.ok else None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise RayUnreachableError(_no_dashboard(cluster))
    return fields


def _no_dashboard(cluster: RayCluster) -> str:
    return f"{cluster} answers, but not as a Ray dashboard does: the dashboard's port is 8265 unless it was changed."


def tls_problem(error: BaseException) -> str:
    """Explain an error of a TLS connection, which a client library raised, and the next step."""
    text = " ".join(str(cause) for cause in _chain(error))
    code = next((cause.verify_code for cause in _chain(error) if isinstance(cause, ssl.SSLCertVerificationError)), None)
    if code in (18, 19) or "self-signed" in text or "self signed" in text:
        return "its TLS certificate is self-signed: name it as 'CA bundle' of the connection, or do not check it."
    if code == 62 or "mismatch" in text or "doesn't match" in text:
        return "its TLS certificate is for another host name: use that name as host of the connection."
    if code == 10 or "has expired" in text:
        return "its TLS certificate has expired: renew it."
    if code == 20 or "unable to get local issuer" in text:
        return "its TLS certificate is from an issuer unknown here: name that as 'CA bundle' of the connection."
    if "WRONG_VERSION_NUMBER" in text or "record layer failure" in text or "UNKNOWN_PROTOCOL" in text:
        return "it does not speak TLS: write http:// instead of https:// in the host of the connection."
    return f"the TLS connection fails ({type(error).__name__}): look at the certificate and the 'CA bundle'."


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes; urllib3 and aiohttp store the first one in ``reason`` or ``args``."""
    waiting: list[Any] = [error]
    seen: set[int] = set()
    while waiting:
        cause = waiting.pop()
        if isinstance(cause, BaseException) and id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            waiting += [cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args]
