"""Mailbox: send a pickled call from the driver to the process on each host, and receive its result or error.

The driver listens on its node's address, which the hosts of a Ray cluster can reach, and accepts only clients with the
pod's key. Each message has its own connection, so none is idle for the days that a call may take. An answer belongs to
one start of the pod, so an answer of a process of an earlier start, which thawed late, does not count.
"""

from __future__ import annotations

import os
import pickle
import secrets
import socketserver
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from types import TracebackType
from typing import Any, Final, Literal, Self

ADDRESS_VARIABLE: Final = "TRADEWIND_CALL_ADDRESS"
KEY_VARIABLE: Final = "TRADEWIND_CALL_KEY"
_TIMEOUT_S: Final = 60.0
_PAUSE_S: Final = 1.0

Kind = Literal["result", "error"]


class Mailbox:
    """The driver's end, open for the length of a ``with`` block."""

    def __init__(self, call: bytes, ip: str) -> None:
        self._call = call
        self._ip = ip
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._answers: dict[tuple[Kind, int], dict[int, Any]] = defaultdict(dict)
        self._server = _Server((ip, 0), self)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True, name="mailbox").start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def env(self) -> dict[str, str]:
        """The variables that the processes need."""
        return {ADDRESS_VARIABLE: f"{self._ip}:{self._server.server_address[1]}", KEY_VARIABLE: self._key.hex()}

    def results(self) -> list[bytes]:
        """Return the pickled results of the last start, by rank."""
        with self._lock:
            starts = [start for kind, start in self._answers if kind == "result"]
            last = self._answers[("result", max(starts))] if starts else {}
            return [last[rank] for rank in sorted(last)]

    def error(self, start: int, rank: int) -> Mapping[str, str] | None:
        """Return the exception that ended this process, if the process could send one."""
        with self._lock:
            return self._answers[("error", start)].get(rank) if ("error", start) in self._answers else None

    def serve(self, connection: Connection) -> None:
        """Handle one message of a process."""
        deliver_challenge(connection, self._key)
        answer_challenge(connection, self._key)
        kind, start, rank, value = pickle.loads(connection.recv_bytes())
        if kind == "call":
            connection.send_bytes(self._call)
            return
        with self._lock:
            self._answers[(kind, start)][rank] = value
        connection.send_bytes(b"taken")


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024  # all hosts of a large slice connect at once

    def __init__(self, address: tuple[str, int], mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        super().__init__(address, _Handler)


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        # A client without the key, or a process that died in a message; the driver then gets its exit code.
        with suppress(AuthenticationError, OSError, EOFError), Connection(os.dup(self.request.fileno())) as connection:
            self.server.mailbox.serve(connection)


def fetch_call() -> bytes:
    """Return the pickled call of this process's pod."""
    return _send("call", None)


def answer(kind: Kind, value: Any) -> None:
    """Send the driver the pickled result of this process, or its error."""
    _send(kind, value)


def _send(kind: str, value: Any) -> bytes:
    """Send one message and return its answer; retry for a minute while the driver cannot be reached."""
    start, rank = int(os.environ["TRADEWIND_RESTARTS"]), int(os.environ["TRADEWIND_PROCESS_ID"])
    message = pickle.dumps((kind, start, rank, value))
    ip, _, port = os.environ[ADDRESS_VARIABLE].rpartition(":")
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            with Client((ip, int(port)), authkey=bytes.fromhex(os.environ[KEY_VARIABLE])) as connection:
                connection.send_bytes(message)
                return connection.recv_bytes()
        except (OSError, EOFError):
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)
