"""Relay on an engine's host: only the pool's head reaches the engine, which listens at 127.0.0.1.

The first request of a connection must show the worker's token. From then on the relay only copies bytes, which costs
far less than a second HTTP server.
"""

from __future__ import annotations

import asyncio
import hmac
from contextlib import suppress
from typing import Final

_HEAD_LIMIT: Final = 64 * 1024
_HEAD_S: Final = 30.0
_CHUNK: Final = 256 * 1024
_UNAUTHORIZED: Final = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Relay:
    """Accepts connections at ``ip`` and passes those with the token on to a port of 127.0.0.1."""

    def __init__(self, ip: str, token: str) -> None:
        self._ip = ip
        self._header = f"Bearer {token}".encode()
        self.engine_port: int | None = None
        """Where the engine listens; connections are closed while it is None."""
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Listen; return the port."""
        self._server = await asyncio.start_server(self._accept, self._ip, 0, limit=_HEAD_LIMIT)
        return int(self._server.sockets[0].getsockname()[1])

    def close_connections(self) -> None:
        """Cut all connections: the engine is gone."""
        for task in self._open:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
                await self._relay(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._open.discard(task)
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
        if not hmac.compare_digest(_authorization(head), self._header):
            writer.write(_UNAUTHORIZED)
            await writer.drain()
            return
        if self.engine_port is None:
            return
        engine_reader, engine_writer = await asyncio.open_connection("127.0.0.1", self.engine_port)
        try:
            engine_writer.write(head)
            ways = {
                asyncio.ensure_future(_copy(reader, engine_writer)),
                asyncio.ensure_future(_copy(engine_reader, writer)),
            }
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)  # either end is the end
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            engine_writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()


def _authorization(head: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"authorization":
            return value.strip()
    return b""
