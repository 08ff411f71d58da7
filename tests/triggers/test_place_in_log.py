"""A place in the log is written down only when the lines before it are out of the process."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tradewind.triggers import place_in_log

UNCONNECTED = "import socket; from tradewind.triggers.place_in_log import _unix_sockets as found"


@pytest.fixture
def channel() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    place_in_log._unix_sockets.cache_clear()
    yield ours, theirs
    ours.close()
    theirs.close()
    place_in_log._unix_sockets.cache_clear()


async def test_what_the_other_side_has_not_read_is_waited_for(channel: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = channel
    assert await place_in_log._lines_are_taken()
    ours.send(b"line\n" * 100)
    waiting = asyncio.create_task(place_in_log._lines_are_taken())
    done, _ = await asyncio.wait({waiting}, timeout=10 * place_in_log._DRAIN_POLL_S)
    assert not done
    assert theirs.recv(1000) == b"line\n" * 100
    assert await waiting


def test_only_connected_unix_sockets_are_asked() -> None:
    code = (
        f"{UNCONNECTED}\n"
        "kept = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_INET), *socket.socketpair()]\n"
        "assert sorted(found()) == sorted(one.fileno() for one in kept[2:]), found()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdin=subprocess.DEVNULL)
