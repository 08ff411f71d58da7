"""What Compute Engine says no with: HTTP answers, and the errors that an operation ends in."""

from __future__ import annotations

import json
from typing import Any, Final

from tradewind.rehearsal.cloud.loopback import Answer

_JSON: Final = {"Content-Type": "application/json; charset=UTF-8"}


class RefusedRequestError(Exception):
    """A request that is answered with an error; ``reason`` is Google's short word for it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message

    def answer(self, kind: str) -> Answer:
        """The error as it is sent."""
        one = {"message": self.message, "domain": "global", "reason": self.reason}
        return told(kind, {"error": {"code": self.status, "message": self.message, "errors": [one]}}, self.status)


class FailedOperationError(Exception):
    """What an accepted request fails with later; ``code`` is what its operation tells."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def told(kind: str, fields: dict[str, Any], status: int = 200) -> Answer:
    """An answer in JSON."""
    return Answer(kind, status, json.dumps(fields).encode(), _JSON)


def not_found(path: str) -> RefusedRequestError:
    """Nothing has this name."""
    return RefusedRequestError(404, "notFound", f"The resource '{path}' was not found")


def already_exists(path: str) -> RefusedRequestError:
    """The name is taken."""
    return RefusedRequestError(409, "alreadyExists", f"The resource '{path}' already exists")


def denied(permission: str, path: str) -> RefusedRequestError:
    """The account may not do this."""
    return RefusedRequestError(403, "forbidden", f"Required '{permission}' permission for '{path}'")


def invalid(message: str) -> RefusedRequestError:
    """The request cannot be meant so."""
    return RefusedRequestError(400, "invalid", f"Invalid value for field: {message}")
