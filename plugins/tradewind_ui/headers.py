"""Security headers of every response: nothing runs in it, no other page frames it, no cache keeps it.

Airflow's own page loads the bundle, and the answers of the API are data. So a response that a browser is made to open
by itself runs no script, whatever text is in it. Built files are the exception: a worker may import the plugin's
chunks, and browsers keep them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

_NOTHING: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
DATA_POLICY: Final = f"{_NOTHING}; sandbox"
"""Policy of the API's answers; an opened one has no origin either."""
BUILT_POLICY: Final = f"{_NOTHING}; script-src 'self'"
"""Policy of built files, which is that of a worker too."""
IMMUTABLE: Final = "public, max-age=31536000, immutable"
"""For a file whose name changes with its content."""
REVALIDATED: Final = "no-cache"
"""For a file that a browser keeps but asks for again; its ``ETag`` saves the transfer."""
HEADERS: Final = {
    "Content-Security-Policy": DATA_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_RAW: Final = {name.lower().encode(): value.encode() for name, value in HEADERS.items()}
_CACHED: Final = (IMMUTABLE.encode(), REVALIDATED.encode())


def with_headers(app: Application) -> Application:
    """Wrap ``app`` to set these headers on every response, also on refusals."""

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _secured(message.get("headers", ()))
            await send(message)

        await app(scope, receive, send_with_headers)

    return answer


def _secured(headers: Any) -> list[tuple[bytes, bytes]]:
    """Return the headers with each of ours once. Only built files set their ``Cache-Control``."""
    given = [(name, value) for name, value in headers if name.lower() not in _RAW]
    cached = next((value for name, value in headers if name.lower() == b"cache-control" and value in _CACHED), None)
    built = {b"content-security-policy": BUILT_POLICY.encode(), b"cache-control": cached} if cached else {}
    return [*given, *(_RAW | built).items()]
