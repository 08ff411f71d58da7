"""Carries a pickled call from the driver to the process on each host, and what came of it back.

The driver listens on its node's address, and only who has the pod's own key is heard; the hosts of a Ray cluster reach
each other anyway. Each message is a connection of its own, so none stands idle for the days that a call may take. An
answer belongs to one start of the pod: a process of an earlier start, thawed late, cannot be taken for one of the last.
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
_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 1.0

Kind = Literal["result", "error"]


class Mailbox:
    """The driver's end; it is open for the length of a ``with`` block."""

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
        """What the processes need in their environment."""
        return {ADDRESS_VARIABLE: f"{self._ip}:{self._server.server_address[1]}", KEY_VARIABLE: self._key.hex()}

    def results(self) -> list[bytes]:
        """The pickled results of the last start, by rank."""
        with self._lock:
            starts = [start for kind, start in self._answers if kind == "result"]
            last = self._answers[("result", max(starts))] if starts else {}
            return [last[rank] for rank in sorted(last)]

    def error(self, start: int, rank: int) -> Mapping[str, str] | None:
        """The exception that ended this process, if one did and the process could say so."""
        with self._lock:
            return self._answers[("error", start)].get(rank) if ("error", start) in self._answers else None

    def serve(self, connection: Connection) -> None:
        """One message of a process."""
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
    request_queue_size = 1024  # all hosts of a large slice ask at once

    def __init__(self, address: tuple[str, int], mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        super().__init__(address, _Handler)


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        # A stranger, or a process that was ended in the middle of a word, which is then told by its exit code.
        with suppress(AuthenticationError, OSError, EOFError), Connection(os.dup(self.request.fileno())) as connection:
            self.server.mailbox.serve(connection)


def fetch_call() -> bytes:
    """The call of this process's pod."""
    return _ask("call", None)


def answer(kind: Kind, value: Any) -> None:
    """Give the driver the pickled result of this process, or its error."""
    _ask(kind, value)


def _ask(kind: str, value: Any) -> bytes:
    """One message and its answer; a driver that cannot be reached is asked again for a minute."""
    start, rank = int(os.environ["TRADEWIND_RESTARTS"]), int(os.environ["TRADEWIND_PROCESS_ID"])
    message = pickle.dumps((kind, start, rank, value))
    ip, _, port = os.environ[ADDRESS_VARIABLE].rpartition(":")
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with Client((ip, int(port)), authkey=bytes.fromhex(os.environ[KEY_VARIABLE])) as connection:
                connection.send_bytes(message)
                return connection.recv_bytes()
        except (OSError, EOFError):
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)
