"""What an error of Google's client means, as one of our own types.

The API says RESOURCE_EXHAUSTED (429) for three things that ask for different answers: no capacity in the zone, a
quota of the project, and too many requests in a minute. Only its words tell them apart, and they are known from
Google's documentation and from what people report, not measured.
"""

from __future__ import annotations

from typing import Final

from tradewind.cloud_tpu.tpu_errors import (
    BadSliceError,
    QuotaError,
    StockOutError,
    TpuApiError,
    TpuConflictError,
    TpuDeniedError,
    TpuNotFoundError,
    TpuUnreachableError,
)

_NO_CAPACITY: Final = ("no more capacity", "stockout", "insufficient capacity", "not enough resources")
_TOO_FAST: Final = ("per minute", "ratelimit", "rate limit", "too many requests")
_QUOTA: Final = ("quota",)


def is_worth_retrying(error: Exception) -> bool:
    """Whether the same call may do better in a moment."""
    import requests
    from google.api_core import exceptions
    from google.auth.exceptions import TransportError

    if _says(error, _NO_CAPACITY):
        return False
    if isinstance(error, exceptions.TooManyRequests):  # of which ResourceExhausted is one
        return _says(error, _TOO_FAST)
    silent = (exceptions.ServiceUnavailable, exceptions.GatewayTimeout, exceptions.BadGateway, exceptions.RetryError)
    lost = (exceptions.InternalServerError, requests.ConnectionError, requests.Timeout, TransportError)
    return isinstance(error, silent + lost)


def refusal(what: str, error: Exception) -> TpuApiError:
    """The error of ours for ``error``, which came from doing ``what``."""
    kind, advice = _kind(error)
    words = str(getattr(error, "message", "") or error).strip().rstrip(".") or type(error).__name__
    return kind(f"Cloud TPU API, {what}: {words}. {advice}".strip())


def _kind(error: Exception) -> tuple[type[TpuApiError], str]:
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    if isinstance(error, exceptions.TooManyRequests) or _says(error, _NO_CAPACITY):
        return _exhausted(error)
    if is_worth_retrying(error):
        return TpuUnreachableError, "Try again later."
    if isinstance(error, exceptions.NotFound):
        return TpuNotFoundError, ""
    if isinstance(error, exceptions.Conflict):  # AlreadyExists is one, too
        return TpuConflictError, ""
    if isinstance(error, exceptions.Forbidden | exceptions.Unauthorized | GoogleAuthError):
        return TpuDeniedError, "Grant the account roles/tpu.admin."
    if isinstance(error, exceptions.BadRequest) and not isinstance(error, exceptions.FailedPrecondition):
        return BadSliceError, "Correct what is wanted of the slice."
    return TpuApiError, ""


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
