"""Malformed responses from a head's address: one error sentence, bounded memory and stack."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tradewind.fleet.access.dashboards import DashboardTile, served_page
from tradewind.ray_jobs import api as jobs_api
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayUnreachableError
from tradewind.ray_jobs.nodes import fetch_living, fetch_nodes, parse_node_types
from tradewind.ray_jobs.probe import check_connection, version_in

DEEP = b"[" * 200_000


class Anything(BaseHTTPRequestHandler):
    """Answer each path with its entry in ``bodies``."""

    bodies: dict[str, bytes] = {}

    def do_GET(self) -> None:
        body = self.bodies.get(self.path.partition("?")[0], b"{}")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:  # the client has stopped reading
            return

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def head() -> Iterator[RayCluster]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Anything)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    Anything.bodies = {"/api/version": b'{"ray_version": "2.60.0"}'}
    yield RayCluster("mad", f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()


def asked(head: RayCluster, ask: Callable[[JobsApi], Any]) -> Any:
    async def run() -> Any:
        async with JobsApi(head) as there:
            return await ask(there)

    return asyncio.run(run())


ODD = [b"", b"7", b"[]", b'"x"', b"null", DEEP, b"{", b"\xff", b'{"data": 7}', b'{"data": {"result": {"result": [7]}}}',
       b'{"data": {"result": {"result": [{}]}}}', b'{"data": {"result": {"result": 7}}}',
       b'{"data": {"result": {"result": [{"node_id": "a", "resources_total": 7}]}}}',
       b'{"data": {"result": {"result": [{"node_id": "a", "resources_total": {"CPU": "x"}}]}}}']  # fmt: skip


@pytest.mark.parametrize("body", ODD, ids=lambda body: repr(body)[:40])
def test_malformed_node_response_is_reported_in_one_sentence(body: bytes, head: RayCluster) -> None:
    Anything.bodies["/api/v0/nodes"] = body
    for ask in (fetch_nodes, lambda there: fetch_living(there, ["a"])):
        try:
            found = asked(head, ask)
        except RayUnreachableError as error:
            assert str(error).startswith("Ray cluster 'mad'") and len(str(error)) < 300
        else:
            assert not found or "node_id" in body.decode(), "nothing is made of it"
    with pytest.raises(RayUnreachableError):
        check_connection(head)


@pytest.mark.parametrize("body", [*ODD[:8], b'{"ray_version": 7}', b'{"ray_version": "2\\ud800"}',
                                  b'{"ray_version": "2.6\\n\\u001b[2J"}', b'{"ray_version": "' + b"2" * 100 + b'"}'],
                         ids=lambda body: repr(body)[:40])  # fmt: skip
def test_a_version_that_is_none_is_told_in_a_sentence(body: bytes, head: RayCluster) -> None:
    Anything.bodies["/api/version"] = body
    for ask in (lambda: RayJobs(head).version(), lambda: check_connection(head)):
        with pytest.raises(RayUnreachableError, match="^Ray cluster 'mad'"):
            ask()


@pytest.mark.parametrize("version", ["2.60.0", "3.0.0.dev0", "2.9.0rc1+abc"])
def test_a_version_is_one(version: str) -> None:
    assert version_in({"ray_version": version}) == version


def test_an_answer_that_is_too_large_is_not_read_to_its_end(head: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_api, "MAX_RESPONSE_BYTES", 1 << 20)
    Anything.bodies["/api/jobs/"] = b"[" + b" " * (30 << 20) + b"]"
    with pytest.raises(RayUnreachableError, match="answered more than 1 MiB to GET /api/jobs/, which Ray never does"):
        asked(head, lambda there: there.jobs())
    Anything.bodies["/api/jobs/"] = b"[" + b" " * 1000 + b"]"
    assert asked(head, lambda there: there.jobs()) == []


@pytest.mark.parametrize(
    "text", ["(" * 5000, "[" * 100_000, "{[]: 1}", "x" * 10, "'a' 'b", "{1, {2}}"], ids=lambda t: t[:9]
)
@pytest.mark.parametrize("generation", ["_V1_CONFIG", "_V2_CONFIG"])
def test_a_monitor_log_that_holds_no_configuration_says_nothing(generation: str, text: str) -> None:
    from tradewind.ray_jobs import nodes

    assert parse_node_types(f"{getattr(nodes, generation)}{text}\n{text}\n20") is None


def test_lone_surrogate_of_one_cluster_does_not_break_tiles_page() -> None:
    import requests

    mad = DashboardTile("mad", "us-central2", "http://mad.localhost:1", "said \ud800")
    with served_page(lambda: [mad]) as address:
        answer = requests.get(address, timeout=30)
    assert answer.status_code == 200 and "said ?" in answer.text
