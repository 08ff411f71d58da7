"""A lost machine refuses connections or does not answer."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tradewind.runtime.pods.nodes import START_S, Node, is_listening, start_limit_s, unresponsive_nodes


@pytest.fixture
def listening() -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


@pytest.fixture
def refusing() -> tuple[str, int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address: tuple[str, int] = server.getsockname()
    return address


@pytest.fixture
def vanished() -> Iterator[tuple[str, int]]:
    """An address that does not answer: its connection queue is full, so the kernel drops packets."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        while True:
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0.3)
            try:
                waiting.connect(server.getsockname())
            except TimeoutError:
                break
        yield server.getsockname()


@pytest.mark.slow
def test_refusing_and_vanished_nodes_are_unresponsive(
    listening: tuple[str, int], refusing: tuple[str, int], vanished: tuple[str, int]
) -> None:
    assert is_listening(*listening)
    assert not is_listening(*refusing)
    assert not is_listening(*vanished, timeout_s=0.5)
    nodes = [Node("there", *listening), Node("refuses", *refusing), Node("vanished", *vanished)]
    assert unresponsive_nodes(nodes, timeout_s=0.5) == {"refuses", "vanished"}
    assert unresponsive_nodes([]) == set()


@pytest.mark.parametrize(
    ("environment", "more_s"),
    [
        ({}, 0.0),
        ({"env_vars": {"A": "1"}, "config": {"setup_timeout_seconds": 1800}}, 0.0),
        ({"uv": {"packages": ["x"]}, "config": {"setup_timeout_seconds": 1800}}, 1800.0),
        ({"working_dir": "gcs://code.zip"}, 600.0),
        ({"pip": ["x"], "config": {"setup_timeout_seconds": -1}}, math.inf),
    ],
)
def test_host_start_timeout_includes_environment_setup(environment: dict[str, object], more_s: float) -> None:
    assert start_limit_s(environment) == START_S + more_s
