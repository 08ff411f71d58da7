"""Malformed responses from a head's address: one error sentence, bounded memory and stack."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import requests

from tests.support.http_server import serving
from tradewind.fleet.access.dashboards import DashboardTile, served_page
from tradewind.ray_jobs import api as jobs_api
from tradewind.ray_jobs import nodes as ray_nodes
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import JobDetails, submitted_jobs
from tradewind.ray_jobs.errors import RayUnreachableError
from tradewind.ray_jobs.nodes import fetch_living, fetch_nodes, parse_node_types
from tradewind.ray_jobs.probe import check_connection, version_in
from tradewind.ray_jobs.usage import fetch_usage, may_wait


class AnyAnswer(BaseHTTPRequestHandler):
    """Answer each path with its entry in ``bodies``."""

    bodies: dict[str, bytes] = {}

    def do_GET(self) -> None:
        body = self.bodies.get(self.path.partition("?")[0], b"{}")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        with suppress(OSError):  # the client has stopped reading
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def head() -> Iterator[RayCluster]:
    AnyAnswer.bodies = {"/api/version": b'{"ray_version": "2.60.0"}'}
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), AnyAnswer)) as server:
        yield RayCluster("mad", f"http://127.0.0.1:{server.server_port}")


def ask(head: RayCluster, question: Callable[[JobsApi], Any]) -> Any:
    async def run() -> Any:
        async with JobsApi(head) as api:
            return await question(api)

    return asyncio.run(run())


MALFORMED = [b"", b"7", b"[]", b'"x"', b"null", b"[" * 200_000, b"{", b"\xff"]
NODES = [7, [7], [{}], *([{"node_id": "a", "resources_total": total}] for total in (7, {"CPU": "x"}))]
NODE_ANSWERS = [
    *MALFORMED,
    b'{"data": 7}',
    *(json.dumps({"data": {"result": {"result": nodes}}}).encode() for nodes in NODES),
]
VERSIONS = [
    *MALFORMED,
    *(json.dumps({"ray_version": version}).encode() for version in (7, "2\ud800", "2.6\n\x1b[2J", "2" * 100)),
]


@pytest.mark.parametrize("body", NODE_ANSWERS, ids=lambda body: repr(body)[:40])
def test_malformed_node_response_is_reported_in_one_sentence(body: bytes, head: RayCluster) -> None:
    AnyAnswer.bodies["/api/v0/nodes"] = body
    for question in (fetch_nodes, lambda api: fetch_living(api, ["a"])):
        try:
            nodes = ask(head, question)
        except RayUnreachableError as error:
            assert str(error).startswith("Ray cluster 'mad'") and len(str(error)) < 300
        else:
            assert not nodes or "node_id" in body.decode()
    with pytest.raises(RayUnreachableError):
        check_connection(head)


TABLES = ["jobs", "tasks", "actors", "placement_groups"]
ROWS = [
    {"data": {"result": {"result": rows}}}
    for rows in (7, [7], [[]], [{}], [{"creator_job_id": "1", "state": "PENDING", "bundles": [7]}])
] + [{"data": {"result": {"result": [{"job_id": "1", "required_resources": {"CPU": "x"}, "creation_time_ms": []}]}}}]


@pytest.mark.parametrize("body", [*MALFORMED, *(json.dumps(rows).encode() for rows in ROWS)], ids=repr)
def test_malformed_usage_is_reported_in_one_sentence(body: bytes, head: RayCluster) -> None:
    for table in TABLES:
        AnyAnswer.bodies = {f"/api/v0/{name}": b'{"data": {"result": {"result": []}}}' for name in TABLES}
        AnyAnswer.bodies[f"/api/v0/{table}"] = AnyAnswer.bodies["/api/cluster_status"] = body
        with suppress(RayUnreachableError):
            assert ask(head, may_wait) is True
        try:
            usage = ask(head, fetch_usage)
        except RayUnreachableError as error:
            assert str(error).startswith("Ray cluster 'mad'") and len(str(error)) < 300
        else:
            assert not usage.waiting and not usage.holding, table


@pytest.mark.parametrize("body", VERSIONS, ids=lambda body: repr(body)[:40])
def test_malformed_version_is_reported_in_one_sentence(body: bytes, head: RayCluster) -> None:
    AnyAnswer.bodies["/api/version"] = body
    for check in (RayJobs, check_connection):  # ``RayJobs`` asks for the version
        with pytest.raises(RayUnreachableError, match="^Ray cluster 'mad'"):
            check(head)


@pytest.mark.parametrize("version", ["2.60.0", "3.0.0.dev0", "2.9.0rc1+abc"])
def test_version_of_ray_is_accepted(version: str) -> None:
    assert version_in({"ray_version": version}) == version


def test_oversized_answer_is_not_read_to_its_end(head: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_api, "MAX_RESPONSE_BYTES", 1 << 20)
    AnyAnswer.bodies["/api/jobs/"] = b"[" + b" " * (30 << 20) + b"]"
    with pytest.raises(RayUnreachableError, match="answered more than 1 MiB to GET /api/jobs/, which Ray never does"):
        ask(head, JobsApi.jobs)
    AnyAnswer.bodies["/api/jobs/"] = b"[" + b" " * 1000 + b"]"
    assert ask(head, JobsApi.jobs) == []


@pytest.mark.parametrize(
    "text", ["(" * 5000, "[" * 100_000, "{[]: 1}", "x" * 10, "'a' 'b", "{1, {2}}"], ids=lambda t: t[:9]
)
@pytest.mark.parametrize("generation", ["_V1_CONFIG", "_V2_CONFIG"])
def test_monitor_log_without_configuration_has_no_node_types(generation: str, text: str) -> None:
    assert parse_node_types(f"{getattr(ray_nodes, generation)}{text}\n{text}\n20") is None


def test_lone_surrogate_of_one_cluster_does_not_break_tiles_page() -> None:
    mad = DashboardTile("mad", "us-central2", "http://mad.localhost:1", "said \ud800")
    with served_page(lambda: [mad]) as address:
        answer = requests.get(address, timeout=30)
    assert answer.status_code == 200 and "said ?" in answer.text


JOB: dict[str, Any] = {"submission_id": "j", "status": "RUNNING", "start_time": 5, "metadata": {"a": "b"}}
REFUSAL = "^Cluster 'mad' sent invalid jobs, as Ray never does"
BAD_JOBS = [
    *([], "x", 7, True, {}),
    *(JOB | {"status": value} for value in (None, 5, [], {}, "")),
    *(JOB | {"submission_id": value} for value in (5, ["j"], {"j": 1})),
    *(JOB | {name: 5} for name in ("message", "entrypoint", "error_type", "driver_node_id")),
    *(JOB | {"start_time": value} for value in ("5", 1e400, float("nan"), True, 10**30, [])),
    *(JOB | {"end_time": value} for value in ("5", -(10**30), {})),
    *(JOB | {"driver_exit_code": value} for value in ("1", [], True)),
    *(JOB | {"metadata": value} for value in ("x", [1], {"a": 1}, {"a": None})),
]
BAD_LISTS: list[Any] = ["x", 7, {"a": 1}, [None], [7], ["x"], [JOB, JOB | {"status": 5}]]


def test_malformed_jobs_are_reported_in_one_sentence(subtests: pytest.Subtests) -> None:
    answers = [*((JobDetails.from_json, job) for job in BAD_JOBS), *((submitted_jobs, jobs) for jobs in BAD_LISTS)]
    for parse, answer in answers:
        with subtests.test(repr(answer)), pytest.raises(RayUnreachableError, match=REFUSAL):
            parse(answer, "Cluster 'mad'")
