"""Check the ports that a stack's processes open to other machines."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from contextlib import suppress

import grpc
import psutil

from tradewind.rehearsal.local.processes import LocalStack

METHODS = [
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.CoreWorkerService/PushTask",
    "/ray.rpc.ReporterService/GetTraceback",
]
"""One method of each Ray service; every listening Ray process offers at least one of them."""


def check_strangers_are_refused(stack: LocalStack, token: str) -> None:
    """Check that each port open to other machines is Ray's, and refuses calls without the token and no others."""
    answers = {listener: _answers(listener[1]) for listener in _beyond_loopback(stack)}
    alive = _beyond_loopback(stack)  # some processes have ended since the first scan
    answers = {listener: codes for listener, codes in answers.items() if listener in alive}
    assert {"gcs_server", "raylet"} <= {name for name, _ in answers}, "Ray does not listen there"
    assert [listener for listener, codes in answers.items() if codes != {grpc.StatusCode.UNAUTHENTICATED}] == []
    for _, port in answers:
        assert grpc.StatusCode.UNAUTHENTICATED not in _answers(port, ("authorization", f"Bearer {token}"))


def _beyond_loopback(stack: LocalStack) -> set[tuple[str, int]]:
    """Return process name and port of each listener that other machines can reach."""
    listeners = set()
    for process in stack.processes():
        with suppress(psutil.NoSuchProcess):
            name, connections = process.name(), process.net_connections("inet")
            addresses = (each.laddr for each in connections if each.status == psutil.CONN_LISTEN)
            listeners |= {(name, address.port) for address in addresses if not _is_loopback(address.ip)}
    return listeners


def _answers(port: int, *metadata: tuple[str, str]) -> set[grpc.StatusCode]:
    """Return the status codes of the Ray services behind the port; services it lacks are left out."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        return {_answer(channel, method, metadata) for method in METHODS} - {grpc.StatusCode.UNIMPLEMENTED}


def _answer(channel: grpc.Channel, method: str, metadata: Sequence[tuple[str, str]]) -> grpc.StatusCode:
    try:
        channel.unary_unary(method)(b"", timeout=30, metadata=metadata)
    except grpc.RpcError as refused:
        return refused.code()
    return grpc.StatusCode.OK


def _is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
