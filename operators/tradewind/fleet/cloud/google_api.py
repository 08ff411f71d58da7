"""Google's own client for Python for one of its REST APIs, with its errors as ``CloudError``.

A variable for each API can name another endpoint: a private one (``https://...``), or the rehearsal's on this machine,
to which no credentials are sent.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from typing import Any, Final

from tradewind.cloud_tpu.endpoints import ENDPOINT_VARIABLES, parse_endpoint
from tradewind.fleet.errors import FleetError

_VERSIONS: Final = {"cloudresourcemanager": "v3", "tpu": "v2alpha1"}
_USUAL_VERSION: Final = "v1"
_BASE_PATHS: Final = {"compute": "/compute/v1/"}
_RETRIES: Final = 2
"""Retries of Google's client, with backoff, after temporary errors and lost connections."""
_TIMEOUT_S: Final = 60.0
_MAX_ANSWER_BYTES: Final = 64 << 20
_MAX_PAGES: Final = 1_000
_TEMPORARY: Final = frozenset({408, 429, *range(500, 600)})


class CloudError(FleetError):
    """A request to Google Cloud failed."""


class CloudUnreachableError(CloudError):
    """Google Cloud does not answer, or not now."""


class CloudDeniedError(CloudError):
    """Access is denied, or this machine has no credentials."""


class CloudNotFoundError(CloudError):
    """The resource does not exist."""


class CloudConflictError(CloudError):
    """The resource exists already, or is being changed."""


def google_api(name: str, endpoint: str | None = None) -> Any:
    """Return the thread-safe client of one API.

    Args:
        endpoint: Another endpoint than Google's; default: the one in the API's variable.

    Raises:
        CloudDeniedError: This machine has no credentials.
        CloudError: Google's client is not installed, or the endpoint is invalid.
    """
    try:
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import GoogleAuthError
        from googleapiclient.discovery import build  # type: ignore[import-untyped]
    except ImportError:
        raise CloudError(
            "Google's client for Python is not installed here: install airflow-provider-tradewind[fleet]."
        ) from None
    variable = ENDPOINT_VARIABLES[name]
    version = _VERSIONS.get(name, _USUAL_VERSION)
    build_api = functools.partial(
        build, name, version, static_discovery=True, cache_discovery=False, requestBuilder=_request
    )
    options: dict[str, Any] = {}
    if endpoint := endpoint or os.environ.get(variable):
        parsed = parse_endpoint(endpoint)
        if parsed is None:
            raise CloudError(f"{variable} must be https://HOST (http only on the loopback).")
        scheme, host, is_here = parsed
        options["client_options"] = {"api_endpoint": f"{scheme}://{host}{_BASE_PATHS.get(name, '/')}"}
        if is_here:
            options["credentials"] = AnonymousCredentials()
    try:
        return build_api(**options)
    except GoogleAuthError as error:
        raise CloudDeniedError(
            f"No Google credentials were found here ({type(error).__name__}): run 'gcloud auth application-default "
            "login', or give the machine a service account."
        ) from None


@contextmanager
def readable_answer(what: str) -> Iterator[None]:
    """Refuse an answer that the block cannot read. ``what`` names its subject.

    Raises:
        CloudError: A field is missing, or has another type than Google's.
    """
    try:
        yield
    except FleetError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError, OverflowError) as error:
        raise CloudError(f"{what}: Google Cloud's answer cannot be read ({type(error).__name__}).") from None


class _BoundedResponse(HTTPResponse):
    """Response whose whole content is read only within a limit, and not uncompressed, which has none."""

    def read(self, amt: int | None = None) -> bytes:
        if amt is not None:
            return super().read(amt)
        if self.getheader("content-encoding", "identity") != "identity":
            raise HTTPException("it is compressed")
        content = super().read(_MAX_ANSWER_BYTES + 1)
        if len(content) > _MAX_ANSWER_BYTES:
            raise HTTPException(f"more than {_MAX_ANSWER_BYTES >> 20} MiB")
        return content


def own_connection(http: Any) -> Any:
    """Return a new connection with the credentials of ``http``: threads must not share connections."""
    from google.auth.credentials import AnonymousCredentials
    from google_auth_httplib2 import AuthorizedHttp  # type: ignore[import-untyped]
    from httplib2 import Http  # type: ignore[import-untyped]

    # Servers on this machine are reached without a proxy.
    options = {"proxy_info": None} if isinstance(http.credentials, AnonymousCredentials) else {}
    bounded = Http(timeout=_TIMEOUT_S, **options)
    bounded.request = functools.partial(_request_bounded, bounded.request)
    return AuthorizedHttp(http.credentials, http=bounded)


def _request_bounded(request: Callable[..., Any], uri: str, *args: Any, **kwargs: Any) -> Any:
    from httplib2 import SCHEME_TO_CONNECTION

    usual = SCHEME_TO_CONNECTION[uri.partition(":")[0]]
    kwargs["connection_type"] = type(usual.__name__, (usual,), {"response_class": _BoundedResponse})
    kwargs["headers"] = {**(kwargs.get("headers") or {}), "accept-encoding": "identity"}
    return request(uri, *args, **kwargs)


def _request(http: Any, *args: Any, **kwargs: Any) -> Any:
    from googleapiclient.http import HttpRequest  # type: ignore[import-untyped]

    return HttpRequest(own_connection(http), *args, **kwargs)


def execute_request(request: Any, what: str, *, is_write: bool = False) -> Mapping[str, Any]:
    """Execute a request of Google's client, a write only once; ``what`` names its subject in messages.

    Raises:
        CloudError: The request failed; see the subclasses.
    """
    from google.auth.exceptions import GoogleAuthError, TransportError
    from googleapiclient.errors import HttpError  # type: ignore[import-untyped]
    from httplib2 import HttpLib2Error

    try:
        answer: Mapping[str, Any] = request.execute(num_retries=0 if is_write else _RETRIES)
    except HttpError as error:
        raise _refusal(int(error.resp.status), str(error.reason).strip().rstrip("."), what) from None
    except TransportError:  # its text has the address and nested causes
        raise CloudUnreachableError(
            f"{what}: Google's sign-in does not answer: look at the network here, and try again later."
        ) from None
    except GoogleAuthError as error:
        raise CloudDeniedError(
            f"{what}: Google's credentials here are of no use ({type(error).__name__}): run 'gcloud auth "
            "application-default login'."
        ) from None
    except (ValueError, RecursionError, HTTPException) as error:
        why = str(error) if isinstance(error, HTTPException) else "no JSON, or too deep"
        raise CloudError(f"{what}: Google Cloud's answer cannot be read ({why}).") from None
    except (OSError, HttpLib2Error) as error:
        raise CloudUnreachableError(f"{what}: Google Cloud does not answer ({error}): try again later.") from None
    if not isinstance(answer, Mapping):
        raise CloudError(f"{what}: Google Cloud's answer is no object.")
    return answer


def list_all(list_page: Callable[..., Any], what: str, key: str, **query: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the items below ``key`` of all pages of a list. Raises the same."""
    token: str | None = None
    for _ in range(_MAX_PAGES):
        page = execute_request(list_page(**query, **({"pageToken": token} if token else {})), what)
        items = page.get(key) or []
        if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
            raise CloudError(f"{what}: Google Cloud's answer cannot be read: {key!r} is no list of objects.")
        yield from items
        token = page.get("nextPageToken")
        if not token:
            return
    raise CloudError(f"{what}: Google Cloud's list has no end.")


def _refusal(status: int, words: str, what: str) -> CloudError:
    if status in _TEMPORARY:
        return CloudUnreachableError(f"{what}: Google Cloud answers {status} ({words}): try again later.")
    if status in (401, 403):
        return CloudDeniedError(f"{what}: access is denied ({words}).")
    kinds = {404: CloudNotFoundError, 409: CloudConflictError}
    return kinds.get(status, CloudError)(f"{what}: Google Cloud answers {status}: {words}.")
