"""What can be wrong between us and the Cloud TPU API. Messages name the resource and say what to do."""

from __future__ import annotations


class TpuApiError(Exception):
    """The Cloud TPU API refuses a call, or an operation of it failed."""


class TpuUnreachableError(TpuApiError):
    """The API does not answer, after the retries. It says nothing about any slice."""


class TpuNotFoundError(TpuApiError):
    """There is no such node or queued resource."""


class TpuConflictError(TpuApiError):
    """A node or queued resource of this name is already there."""


class TpuAbortedError(TpuApiError):
    """Something else was going on at the same time, and nothing was done. The same call may do better later."""


class TpuPreconditionError(TpuApiError):
    """The state of the project, or of the resource, does not allow it."""


class TpuDeniedError(TpuApiError):
    """The credentials may not do this."""


class StockOutError(TpuApiError):
    """Google Cloud has no capacity for this slice type in this zone now. It comes back by itself."""


class QuotaError(TpuApiError):
    """The project's quota is used up. Waiting alone does not help, unless something else is deleted."""


class OperationTimeoutError(TpuApiError):
    """An operation has not ended in time; it may still end."""


class BadEndpointError(TpuApiError, ValueError):
    """The endpoint or transport of the API is no good."""


class BadSliceError(TpuApiError, ValueError):
    """What is wanted of a slice cannot be created as it is written."""
