"""No other process takes the ports of a local stack."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tradewind.rehearsal.local import processes
from tradewind.rehearsal.local.processes import NoFreePortError, free_port


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.8.7"])
def test_port_in_use_at_any_address_is_not_free(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    with socket.socket() as taken:
        taken.bind((address, 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(processes, "_PORTS", range(port, port + 1))
        with pytest.raises(NoFreePortError, match=f"from {port} to {port} is free"):
            free_port()


def test_each_call_gives_another_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_PORTS", range(31_000, 31_200))
    monkeypatch.setattr(processes, "_given", {})
    given = [free_port() for _ in range(60)]
    assert len(set(given)) == len(given)


RESERVE = """
import sys
from tradewind.rehearsal.local import processes
processes._PORTS = range(31_200, 31_201)
print(processes.free_port(), flush=True)
sys.stdin.read()
"""


def test_port_reserved_by_other_process_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_PORTS", range(31_200, 31_201))
    monkeypatch.setattr(processes, "_given", {})
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", RESERVE], stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "31200\n"
        with pytest.raises(NoFreePortError):
            free_port()
        other.communicate()
    assert free_port() == 31_200, "the port is free once its process has ended"
