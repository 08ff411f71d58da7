"""Hosts read instance metadata from the rehearsal's server.

A small server stands in for cases that the rehearsal's server cannot produce.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

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
def test_the_notice_reaches_who_waits_for_it_at_once(server: MetadataServer) -> None:
    assert instance_metadata.is_preempted() is False
    assert instance_metadata.wait_for_preemption(0.1) is False
    heard: list[tuple[bool | None, float]] = []
    waiter = threading.Thread(
        target=lambda: heard.append((instance_metadata.wait_for_preemption(60.0), time.monotonic()))
    )
    waiter.start()
    server.preempt_slice("slice-a")
    noticed_at = time.monotonic()
    waiter.join(timeout=30.0)
    [(is_preempted, heard_at)] = heard
    assert is_preempted is True
    assert heard_at - noticed_at < 10.0  # sooner than the timeout of a whole request, one minute
    assert instance_metadata.is_preempted() is True
    assert instance_metadata.wait_for_preemption(60.0) is True


@pytest.mark.slow
def test_only_maintenance_that_terminates_host_is_reported(server: MetadataServer) -> None:
    server.announce_maintenance("slice-a", "MIGRATE_ON_HOST_MAINTENANCE")
    assert instance_metadata.wait_for_maintenance(0.1) is False
    server.announce_maintenance("slice-a")
    assert instance_metadata.wait_for_maintenance(60.0) is True
    assert instance_metadata.is_preempted() is False


def test_waiting_ends_when_nobody_needs_it_any_more(server: MetadataServer) -> None:
    assert instance_metadata.wait_for_preemption(60.0, stopped=lambda: True) is False


def test_nobody_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{free.getsockname()[1]}")
        assert instance_metadata.is_preempted() is None
        assert instance_metadata.wait_for_preemption(5.0) is None
        assert instance_metadata.zone() is None


def test_a_server_that_accepts_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
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

        thread = threading.Thread(target=answer)
        thread.start()
        assert instance_metadata.is_preempted() is None
        thread.join()
