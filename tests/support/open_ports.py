"""Check the ports that a stack's processes open to other machines."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import grpc
import psutil

from tradewind.rehearsal.local.processes import LocalStack

METHODS = [
    f"/ray.rpc.{name}"
    for name in (
        "NodeInfoGcsService/GetAllNodeInfo",
        "NodeManagerService/GetNodeStats",
        "ObjectManagerService/Pull",
        "CoreWorkerService/PushTask",
        "ReporterService/GetTraceback",
    )
]
"""One method of each Ray service; every listening Ray process offers at least one of them."""


def check_strangers_are_refused(stack: LocalStack, token: str) -> None:
    """Check that every port open to other machines belongs to Ray and refuses calls without the token.

    Calls with the token must succeed.
    """
    told = {found: _answers(found[1]) for found in _beyond_loopback(stack)}
    there = _beyond_loopback(stack)  # drops the processes that have ended since the first scan
    told = {found: codes for found, codes in told.items() if found in there}
    assert {"gcs_server", "raylet"} <= {name for name, _ in told}, "nothing listens, so this shows nothing"
    assert [found for found, codes in told.items() if codes != {grpc.StatusCode.UNAUTHENTICATED}] == []
    for _, port in told:
        shown = _answers(port, ("authorization", f"Bearer {token}"))
        assert grpc.StatusCode.UNAUTHENTICATED not in shown, "it is not the token that lacked"


def _beyond_loopback(stack: LocalStack) -> set[tuple[str, int]]:
    """Return process name and port of each listener that other machines can reach."""
    found = set()
    for process in stack.processes():
        try:
            name, connections = process.name(), process.net_connections("inet")
        except psutil.NoSuchProcess:  # the process has ended
            continue
        listening = (one.laddr for one in connections if one.status == psutil.CONN_LISTEN)
        found |= {(name, address.port) for address in listening if not _is_loopback(address.ip)}
    return found


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
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
