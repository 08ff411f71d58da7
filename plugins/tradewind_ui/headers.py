"""Security headers of every response: only the plugin's own files, no caching, no foreign frames.

The pages show untrusted texts. They are escaped; if one is not, the browser still runs none of its scripts, since the
headers refuse inline scripts and styles.
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
    """Wrap ``app`` to set these headers on every response, also on refusals."""

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in _RAW}
                others = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in own]
                message["headers"] = [*others, *_RAW]
            await send(message)

        await app(scope, receive, send_with_headers)

    return answer
