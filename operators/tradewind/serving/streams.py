"""Streams of answers (server-sent events) that another engine continues if the first one is lost.

The second engine begins again. Its text must begin with the text that the client already has, which is then left out.
Only text can be compared so: a stream with anything else in it, or with another text, ends with an error event.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

DONE: Final = b"data: [DONE]\n\n"
_PREFIX: Final = b"data:"
_SAID: Final = frozenset({"role", "content"})
"""Fields of a chat's delta that a second stream can continue."""


class DifferentStreamError(Exception):
    """The second stream does not begin with what was sent of the first."""


class EventSplitter:
    """Cuts a stream of bytes into events, each with its blank line."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the events that are complete."""
        self._rest = (self._rest + data).replace(b"\r\n", b"\n")
        while (end := self._rest.find(b"\n\n")) >= 0:
            event, self._rest = self._rest[: end + 2], self._rest[end + 2 :]
            yield event


class StreamedAnswer:
    """What a client has of a stream, and what of a second stream it still needs."""

    def __init__(self) -> None:
        self._sent: dict[int, str] = defaultdict(str)
        """Text by choice."""
        self._due: dict[int, str] = {}
        """Text by choice that the present stream must repeat."""
        self._identity: Any = None
        self._can_continue = True
        self.is_complete = False
        self.usage: dict[str, Any] = {}

    def begin_again(self) -> None:
        """Expect a second stream.

        Raises:
            DifferentStreamError: The first one cannot be continued.
        """
        if not self._can_continue:
            raise DifferentStreamError("it holds more than text")
        self._due = dict(self._sent)

    def pass_on(self, event: bytes) -> bytes:
        """Return what the client gets of this event; nothing if it has that.

        Raises:
            DifferentStreamError: The event differs from what the client has.
        """
        if event == DONE:
            if self._is_repeating:
                raise DifferentStreamError("the text is shorter")
            self.is_complete = True
            return event
        fields = _fields(event)
        if fields is None:
            self._can_continue = self._can_continue and event.startswith(b":")  # a comment
            return b"" if self._is_repeating else event
        self.usage = fields.get("usage") or self.usage
        is_repeating = self._is_repeating
        self._read_choices(fields)
        if is_repeating and not self._has_news(fields):
            return b""
        if self._identity is None:
            self._identity = fields.get("id")
        if fields.get("id") == self._identity and not is_repeating:
            return event
        return b"data: " + json.dumps({**fields, "id": self._identity}).encode() + b"\n\n"

    @property
    def _is_repeating(self) -> bool:
        return any(self._due.values())

    def _read_choices(self, fields: dict[str, Any]) -> None:
        """Note the texts of an event; cut off what the client has."""
        for choice in fields.get("choices") or ():
            index = choice.get("index", 0)
            delta = choice.get("delta")
            holder, key = (choice, "text") if delta is None else (delta, "content")
            has_more = choice.get("logprobs") or any(
                value for name, value in (delta or {}).items() if name not in _SAID
            )
            self._can_continue = self._can_continue and not has_more
            text = holder.get(key) or ""
            due = self._due.get(index, "")
            repeated = min(len(due), len(text))
            if due[:repeated] != text[:repeated]:
                raise DifferentStreamError("the text differs")
            self._due[index] = due[repeated:]
            if repeated:
                holder[key] = text[repeated:]
            self._sent[index] += text[repeated:]
            if choice.get("finish_reason") and self._due[index]:
                raise DifferentStreamError("the text is shorter")

    @staticmethod
    def _has_news(fields: dict[str, Any]) -> bool:
        choices = fields.get("choices") or ()
        return any(
            choice.get("finish_reason") or choice.get("text") or (choice.get("delta") or {}).get("content")
            for choice in choices
        )


def error_event(kind: str, message: str) -> bytes:
    """Return the event that ends a stream that cannot continue."""
    error = {"error": {"message": message, "type": kind, "param": None, "code": None}}
    return b"data: " + json.dumps(error).encode() + b"\n\n"


def _fields(event: bytes) -> dict[str, Any] | None:
    lines = [line[len(_PREFIX) :].strip() for line in event.split(b"\n") if line.startswith(_PREFIX)]
    try:
        fields = json.loads(b"\n".join(lines))
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and isinstance(fields.get("choices", []), list) else None
