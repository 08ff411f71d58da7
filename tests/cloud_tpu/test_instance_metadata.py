"""Hosts read instance metadata from the rehearsal's server.

A small server stands in for cases that the rehearsal's server cannot produce.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tradewind.cloud_tpu import instance_metadata
from tradewind.rehearsal.cloud.metadata_server import HostMetadata, MetadataServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    server = MetadataServer("rehearsal", "us-central2-b")
    server.start()
    facts = HostMetadata("slice-a", 1, "v4-16", {}, {"tpu-env": "NODE_ID: 'slice-a'"}, True)
    monkeypatch.setenv("GCE_METADATA_HOST", server.add_host("slice-a.1", "127.0.0.1", facts))
    yield server
    server.stop()


def test_a_host_reads_its_zone_and_attributes(server: MetadataServer) -> None:
    assert instance_metadata.zone() == "us-central2-b"
    assert instance_metadata.attribute("accelerator-type") == "v4-16"
    assert instance_metadata.attribute("tpu-env") == "NODE_ID: 'slice-a'"
    assert instance_metadata.attribute("no/such") is None


@pytest.mark.slow
def test_waiting_process_sees_preemption_at_once(server: MetadataServer) -> None:
    assert instance_metadata.is_preempted() is False
    assert instance_metadata.wait_for_preemption(0.1) is False
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(instance_metadata.wait_for_preemption, 60.0)
        server.preempt_slice("slice-a")
        assert waiting.result(timeout=10.0) is True  # sooner than the timeout of a whole request, one minute
    assert instance_metadata.is_preempted() is True
    assert instance_metadata.wait_for_preemption(60.0) is True


@pytest.mark.slow
def test_only_maintenance_that_terminates_host_is_reported(server: MetadataServer) -> None:
    server.announce_maintenance("slice-a", "MIGRATE_ON_HOST_MAINTENANCE")
    assert instance_metadata.wait_for_maintenance(0.1) is False
    server.announce_maintenance("slice-a")
    assert instance_metadata.wait_for_maintenance(60.0) is True
    assert instance_metadata.is_preempted() is False


def test_waiting_ends_when_caller_stops_it(server: MetadataServer) -> None:
    assert instance_metadata.wait_for_preemption(60.0, stopped=lambda: True) is False


def test_missing_or_silent_server_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{free.getsockname()[1]}")
        assert instance_metadata.is_preempted() is None
        assert instance_metadata.wait_for_preemption(5.0) is None
        assert instance_metadata.zone() is None
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{silent.getsockname()[1]}")
        assert instance_metadata.is_preempted(timeout_s=0.2) is None


def test_other_server_at_metadata_address_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{other.getsockname()[1]}")

        def answer() -> None:
            peer, _ = other.accept()
            peer.recv(4096)
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nTRUE")
            peer.close()

        with ThreadPoolExecutor(1) as pool:
            answering = pool.submit(answer)
            assert instance_metadata.is_preempted() is None
            answering.result()
