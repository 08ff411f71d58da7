"""What every answer of the plugin says to the browser: nothing but our own files, no copies, no frame of strangers.

The pages hold texts that others wrote. Those are escaped; and if one ever were not, the browser would run no script of
theirs, since inline scripts and styles are refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_RAW: Final = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


def with_headers(app: Application) -> Application:
    """``app``, with these headers on every answer, also on those that refuse."""

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in _RAW}
                kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in own]
                message["headers"] = [*kept, *_RAW]
            await send(message)

        await app(scope, receive, send_with_headers)

    return answer
