"""The control API of a rehearsal cloud: its methods over HTTP on the loopback, for whoever shows the token.

``POST /METHOD`` with the arguments as a JSON object; ``GET /status`` and ``GET /requests``.
"""

from __future__ import annotations

import hmac
import inspect
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from tradewind.rehearsal.cloud.control_arguments import BadArgumentError, read_arguments
from tradewind.rehearsal.cloud.control_client import RehearsalControl, RehearsalControlError
from tradewind.rehearsal.cloud.loopback import Answer, HttpRequest, LoopbackServer


class ControlServer(LoopbackServer):
    """Serves ``actions`` (which change something) and ``questions``, both by name."""

    def __init__(self, actions: Mapping[str, Callable[..., Any]], questions: Mapping[str, Callable[[], Any]]) -> None:
        super().__init__()
        self._actions = actions
        self._questions = questions
        self._token = secrets.token_urlsafe(24)

    @property
    def access(self) -> RehearsalControl:
        """What another process needs."""
        return RehearsalControl(self.url, self._token)

    def answer(self, call: HttpRequest) -> Answer:
        name = call.path.strip("/")
        given = call.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            return self.refusal(name, 401, "Show the token of the control file.")
        if call.method == "GET" and name in self._questions:
            return _json(name, self._questions[name]())
        if call.method == "POST" and name in self._actions:
            return self._act(name, call.body)
        known = ", ".join([*sorted(self._actions), *sorted(self._questions)])
        return self.refusal(name, 404, f"There is no {call.method} {call.path}; there are {known}.")

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        return _json(kind, {"error": message}, status)

    def _act(self, name: str, body: bytes) -> Answer:
        action = self._actions[name]
        try:
            arguments = read_arguments(action, body)
        except BadArgumentError as error:
            return self.refusal(name, 400, f"{name}{inspect.signature(action)} does not take that: {error}.")
        try:
            return _json(name, action(**arguments))
        except RehearsalControlError as error:
            return self.refusal(name, 409, str(error))


def _json(kind: str, answer: Any, status: int = 200) -> Answer:
    return Answer(kind, status, json.dumps(answer).encode(), {"Content-Type": "application/json; charset=UTF-8"})
