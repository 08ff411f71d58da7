"""What an error of Google's client means, as one of our own types.

The API says RESOURCE_EXHAUSTED (429) for three things that ask for different answers: no capacity in the zone, a
quota of the project, and too many requests in a minute. Only its words tell them apart, and they are known from
Google's documentation and from what people report, not measured. Only a creation can fail for want of capacity or of
the project's quota: of any other call it means too many requests, whatever the words.

Over REST, two codes may share one HTTP status (409: ALREADY_EXISTS and ABORTED), so the code is read from the answer.
"""

from __future__ import annotations

from typing import Any, Final

from tradewind.cloud_tpu.errors import (
    BadSliceError,
    QuotaError,
    StockOutError,
    TpuAbortedError,
    TpuApiError,
    TpuConflictError,
    TpuDeniedError,
    TpuNotFoundError,
    TpuPreconditionError,
    TpuUnreachableError,
)

_NO_CAPACITY: Final = ("no more capacity", "stockout", "insufficient capacity", "not enough resources")
_TOO_FAST: Final = ("per minute", "ratelimit", "rate limit", "too many requests", "e.g. check quota")
_QUOTA: Final = ("quota",)
_TAKEN: Final = ("already exist",)
_UNANSWERED: Final = frozenset({408, 499})
"""HTTP's Request Timeout, and CANCELLED: somebody on the way has given up waiting."""


def is_worth_retrying(error: Exception, *, is_creation: bool = True) -> bool:
    """Whether the same call may do better in a moment."""
    import requests
    from google.api_core import exceptions
    from google.auth.exceptions import TransportError

    if isinstance(error, exceptions.TooManyRequests):  # of which ResourceExhausted is one
        return is_too_fast(error, is_creation=is_creation)
    if _says(error, _NO_CAPACITY):
        return False
    if getattr(error, "code", None) in _UNANSWERED:
        return True
    silent = (exceptions.ServiceUnavailable, exceptions.GatewayTimeout, exceptions.BadGateway, exceptions.RetryError)
    lost = (
        exceptions.InternalServerError,
        exceptions.Unknown,
        requests.ConnectionError,
        requests.Timeout,
        TransportError,
    )
    return isinstance(error, silent + lost)


def is_too_fast(error: Exception, *, is_creation: bool) -> bool:
    """Whether it asks for fewer requests."""
    from google.api_core import exceptions

    if not isinstance(error, exceptions.TooManyRequests):
        return False
    return not is_creation or (_says(error, _TOO_FAST) and not _says(error, _NO_CAPACITY))


def refusal(what: str, error: Exception, *, is_creation: bool = True) -> TpuApiError:
    """The error of ours for ``error``, which came from doing ``what``."""
    kind, advice = _kind(error, is_creation)
    words = str(getattr(error, "message", "") or error).strip().rstrip(".") or type(error).__name__
    return kind(f"Cloud TPU API, {what}: {words}. {advice}".strip())


def _kind(error: Exception, is_creation: bool) -> tuple[type[TpuApiError], str]:
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    if is_creation and (isinstance(error, exceptions.TooManyRequests) or _says(error, _NO_CAPACITY)):
        return _exhausted(error)
    if isinstance(error, exceptions.TooManyRequests):
        return TpuUnreachableError, "Ask less often."
    if is_worth_retrying(error, is_creation=is_creation):
        return TpuUnreachableError, "Try again later."
    if isinstance(error, exceptions.NotFound):
        return TpuNotFoundError, ""
    if isinstance(error, exceptions.Conflict):  # of which AlreadyExists and Aborted are two
        return (TpuConflictError, "") if _is_taken(error) else (TpuAbortedError, "Try again later.")
    if isinstance(error, exceptions.Forbidden | exceptions.Unauthorized | GoogleAuthError):
        return TpuDeniedError, "Grant the account roles/tpu.admin."
    if isinstance(error, exceptions.BadRequest):
        return _bad_request(error)
    return TpuApiError, ""


def _bad_request(error: Exception) -> tuple[type[TpuApiError], str]:
    if _code(error) == "FAILED_PRECONDITION":
        return TpuPreconditionError, ""
    return BadSliceError, "Correct what is wanted of the slice."


def _is_taken(error: Exception) -> bool:
    code = _code(error)
    return code == "ALREADY_EXISTS" if code else _says(error, _TAKEN)


def _code(error: Any) -> str:
    """The code in ``google.rpc`` that was answered with; empty if the answer does not say."""
    if (of_grpc := getattr(error, "grpc_status_code", None)) is not None:
        return str(of_grpc.name)
    try:
        return str(error.response.json()["error"]["status"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""


def _exhausted(error: Exception) -> tuple[type[TpuApiError], str]:
    if _says(error, _NO_CAPACITY):
        return StockOutError, "Wait, or use another zone."
    if _says(error, _TOO_FAST):
        return TpuUnreachableError, "Ask less often."
    if _says(error, _QUOTA):
        return QuotaError, "Delete what is not needed, or ask Google for more quota."
    return StockOutError, "Wait, or use another zone."


def _says(error: Exception, phrases: tuple[str, ...]) -> bool:
    words = str(error).lower()
    return any(phrase in words for phrase in phrases)
