"""Errors between a client and the Cloud TPU API. Messages name the resource and the next step."""

from __future__ import annotations

from tradewind.text import escape_control_characters


class TpuApiError(Exception):
    """The Cloud TPU API refuses a call, or an operation failed. Its words cannot control a terminal."""

    def __init__(self, message: str) -> None:
        super().__init__(escape_control_characters(message))


class TpuUnreachableError(TpuApiError):
    """The API does not answer, after the retries. This says nothing about any slice."""


class TpuNotFoundError(TpuApiError):
    """There is no such node or queued resource."""


class TpuConflictError(TpuApiError):
    """A node or queued resource of this name exists."""


class TpuAbortedError(TpuApiError):
    """A concurrent operation prevented the call, which had no effect. It may succeed later."""


class TpuPreconditionError(TpuApiError):
    """The state of the project, or of the resource, does not allow the call."""


class TpuDeniedError(TpuApiError):
    """The credentials do not permit the call."""


class StockOutError(TpuApiError):
    """Google Cloud has no capacity for this slice type in this zone now. It returns by itself."""


class QuotaError(TpuApiError):
    """The project's quota is used up. Waiting helps only if other resources are deleted."""


class OperationTimeoutError(TpuApiError):
    """An operation has not ended in time; it may still end."""


class BadEndpointError(TpuApiError, ValueError):
    """The endpoint or transport of the API is invalid."""


class BadSliceError(TpuApiError, ValueError):
    """The requested slice cannot be created as specified."""
