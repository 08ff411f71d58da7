"""Records of WARC files, as crawlers write them."""

from __future__ import annotations

from typing import Any

PAGE = b"<p>A page</p>"


def record(
    block: bytes, url: str = "http://a.org/1", kind: str = "response", length: Any = None, header: str = ""
) -> bytes:
    content_type = {"response": "application/http; msgtype=response", "request": "application/http; msgtype=request"}
    lines = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        "WARC-Record-ID: <urn:uuid:1>",
        "WARC-Date: 2026-01-02T03:04:05Z",
        f"WARC-Target-URI: {url}",
        f"Content-Type: {content_type.get(kind, 'text/plain')}",
        f"Content-Length: {len(block) if length is None else length}",
        *([header] if header else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + block + b"\r\n\r\n"


def response(body: bytes = PAGE, head: str = "", **options: Any) -> bytes:
    lines = ["HTTP/1.1 200 OK", "Content-Type: text/html; charset=utf-8", *([head] if head else []), "", ""]
    return record("\r\n".join(lines).encode() + body, **options)
