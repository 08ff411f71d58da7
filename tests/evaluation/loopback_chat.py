"""A server of conversations on loopback, in this process: a model, or a judge that may answer anything."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = str | int | tuple[int, str] | bytes | None
"""Text; a status, with a message if it has one; bytes of a body; None for an answer without text."""


class LoopbackChat:
    """Answers each conversation with what ``answer`` returns for its body; notes keys and bodies."""

    def __init__(self, answer: Callable[[dict[str, Any]], Answer]) -> None:
        self.answer = answer
        self.keys: list[str | None] = []
        self.bodies: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.keys.append(self.headers["Authorization"])
                outer.bodies.append(body)
                status, content = _response(outer.answer(body))
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Retry-After", "0")
                self.end_headers()
                self.wfile.write(content)

        class Server(ThreadingHTTPServer):
            request_queue_size = 128

        self.server = Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self) -> LoopbackChat:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def said(body: dict[str, Any]) -> str:
    """Return the text of the last message."""
    text: str = body["messages"][-1]["content"]
    return text


def _response(given: Answer) -> tuple[int, bytes]:
    if isinstance(given, bytes):
        return 200, given
    if isinstance(given, (int, tuple)):
        status, message = given if isinstance(given, tuple) else (given, "not now")
        return status, json.dumps({"error": {"message": message, "type": "invalid_request_error"}}).encode()
    message = {"role": "assistant", "content": given}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    usage = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
    whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "loopback", "choices": [choice]}
    return 200, json.dumps(whole | {"usage": usage}).encode()
