"""What the Cloud TPU API says no with: one code of ``google.rpc``, over REST and gRPC alike."""

from __future__ import annotations

from typing import Any, Final

from google.rpc import code_pb2  # type: ignore[import-untyped]

HTTP_STATUS: Final = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""The HTTP status of each code."""


class RefusedCallError(Exception):
    """A call that is answered with an error; ``code`` is its name in ``google.rpc.Code``.

    ``status`` is how HTTP tells it: that of the code, or another one that a proxy on the way may say.
    """

    def __init__(self, code: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = HTTP_STATUS[code] if status is None else status

    @property
    def number(self) -> int:
        """As gRPC and operations tell it."""
        return int(code_pb2.Code.Value(self.code))

    def body(self) -> dict[str, Any]:
        """Google's error in JSON."""
        return {"error": {"code": self.status, "message": self.message, "status": self.code}}


def code_of(status: int) -> str:
    """The code that is told by an HTTP status; the first one that fits."""
    return next((code for code, other in HTTP_STATUS.items() if other == status), "UNAVAILABLE")


def not_found(name: str) -> RefusedCallError:
    """Nothing has this name."""
    return RefusedCallError("NOT_FOUND", f"Resource '{name}' was not found")


def already_exists(name: str) -> RefusedCallError:
    """The name is taken."""
    return RefusedCallError("ALREADY_EXISTS", f"Resource '{name}' already exists")


def invalid(message: str) -> RefusedCallError:
    """The request cannot be meant so."""
    return RefusedCallError("INVALID_ARGUMENT", message)
