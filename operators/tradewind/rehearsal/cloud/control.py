"""Control API of a rehearsal cloud: its methods over HTTP on loopback, for clients with the token.

``POST /METHOD`` with the arguments as a JSON object; ``GET /status`` and ``GET /requests``. Input is validated: JSON of
the types that a method takes, within sensible limits. Otherwise text for a number, NaN seconds or a billion slices
would fail later, in a thread of the cloud.
"""

from __future__ import annotations

import hmac
import inspect
import json
import secrets
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from tradewind.rehearsal.cloud.control_client import RehearsalControl, RehearsalControlError
from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest, LoopbackServer, json_answer

MAX_BODY_BYTES: Final = 64 * 1024
_MAX_TEXT: Final = 200
_MAX: Final[Mapping[type, float]] = {int: 1_000_000, float: 7 * 86_400.0}
"""Limits for integers (workers, slices, failing requests) and for seconds (a week)."""


class BadArgumentError(ValueError):
    """A method of the control API does not accept the arguments sent."""


def read_arguments(action: Callable[..., Any], body: bytes) -> dict[str, Any]:
    """Parse the arguments for ``action`` from ``body``.

    Raises:
        BadArgumentError: It is no JSON object, or has arguments that the method does not accept.
    """
    if len(body) > MAX_BODY_BYTES:
        raise BadArgumentError(f"the request has {len(body)} bytes, and at most {MAX_BODY_BYTES} are read")
    try:
        arguments = json.loads(body or b"{}", parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise BadArgumentError("the request is no JSON object") from None
    if not isinstance(arguments, dict):
        raise BadArgumentError("the request is no JSON object")
    try:
        inspect.signature(action).bind(**arguments)
    except TypeError as error:
        raise BadArgumentError(str(error)[:_MAX_TEXT]) from None
    hints = get_type_hints(action)
    return {name: _checked(name, value, hints[name]) for name, value in arguments.items()}


def _checked(name: str, value: Any, hint: Any) -> Any:
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if value is None and type(None) in kinds:
        return None
    if isinstance(value, bool):
        fits = bool in kinds
    elif isinstance(value, (int, float)):
        numbers = [kind for kind in kinds if kind in _MAX and (kind is float or isinstance(value, int))]
        fits = any(0 <= value <= _MAX[kind] for kind in numbers)
    elif isinstance(value, str):
        fits = str in kinds and value.isprintable() and 0 < len(value) <= _MAX_TEXT
    else:
        fits = False
    if not fits:
        raise BadArgumentError(f"{name} must be {' or '.join(_expected(kind) for kind in kinds)}")
    return value


def _expected(kind: Any) -> str:
    return {
        str: f"a text of 1 to {_MAX_TEXT} printable characters",
        bool: "true or false",
        int: f"a whole number from 0 to {_MAX[int]:.0f}",
        float: f"a number of seconds from 0 to {_MAX[float]:.0f}",
        type(None): "null",
    }[kind]


def _no_number(constant: str) -> Any:
    raise ValueError(constant)


class ControlServer(LoopbackServer):
    """Serves ``actions`` (which change state) and ``questions``, both by name."""

    def __init__(self, actions: Mapping[str, Callable[..., Any]], questions: Mapping[str, Callable[[], Any]]) -> None:
        super().__init__()
        self._actions = actions
        self._questions = questions
        self._token = secrets.token_urlsafe(24)

    @property
    def access(self) -> RehearsalControl:
        """URL and token for another process."""
        return RehearsalControl(self.url, self._token)

    def answer(self, call: HttpRequest) -> Answer:
        name = call.path.strip("/")
        authorization = call.headers.get("Authorization", "")
        if not hmac.compare_digest(authorization.encode(), f"Bearer {self._token}".encode()):
            return self.refusal(name, 401, "Send the token of the control file.")
        if call.method == "GET" and name in self._questions:
            return json_answer(name, self._questions[name]())
        if call.method == "POST" and name in self._actions:
            return self._act(name, call.body)
        known = ", ".join([*sorted(self._actions), *sorted(self._questions)])
        return self.refusal(name, 404, f"There is no {call.method} {call.path}; there are {known}.")

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        return json_answer(kind, {"error": message}, status)

    def _act(self, name: str, body: bytes) -> Answer:
        action = self._actions[name]
        try:
            arguments = read_arguments(action, body)
        except BadArgumentError as error:
            return self.refusal(name, 400, f"{name}{inspect.signature(action)} does not accept the arguments: {error}.")
        try:
            return json_answer(name, action(**arguments))
        except RehearsalControlError as error:
            return self.refusal(name, 409, str(error))
