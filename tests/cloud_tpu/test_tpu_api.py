"""Google's own client against the rehearsal's Cloud TPU, over REST and gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from google.cloud.tpu_v2 import types

from tests.cloud_tpu.cloud import BODY, TpuEnvironment, queued
from tests.support.waiting import until
from tradewind.cloud_tpu.api import MAX_CONCURRENT_CALLS, TpuApi
from tradewind.cloud_tpu.errors import (
    BadEndpointError,
    BadSliceError,
    OperationTimeoutError,
    QuotaError,
    StockOutError,
    TpuAbortedError,
    TpuConflictError,
    TpuDeniedError,
    TpuNotFoundError,
    TpuPreconditionError,
    TpuUnreachableError,
)
from tradewind.cloud_tpu.resources import is_queue_body
from tradewind.cloud_tpu.slice_types import slice_type
from tradewind.rehearsal.tpu.grpc import TpuGrpcServer


@pytest.fixture(params=["rest", "grpc"])
def api(request: pytest.FixtureRequest, env: TpuEnvironment) -> Iterator[TpuApi]:
    if request.param == "rest":
        yield env.api
        return
    server = TpuGrpcServer(env.cloud.service)
    server.start()
    yield env.new_api(endpoint=f"http://{server.address}", transport="grpc")
    server.stop()


def test_a_node_is_created_read_listed_and_deleted(api: TpuApi, env: TpuEnvironment) -> None:
    api.create("slice-a", BODY)
    node = api.wait_until_ready("slice-a")
    assert (node.name, node.slice_type, node.hosts, node.labels) == ("slice-a", "v4-16", 2, {"cluster": "one"})
    assert node.body.items() >= BODY.items()
    assert node.created_at == pytest.approx(env.now, abs=60)
    assert [one.name for one in api.nodes()] == ["slice-a"]
    with pytest.raises(TpuConflictError, match="another resource"):
        api.delete_node("slice-a", "an older one's")
    api.delete_node("slice-a", node.identity)
    assert api.nodes() == []
    with pytest.raises(TpuNotFoundError, match="slice-a"):
        api.node("slice-a")


@pytest.mark.parametrize("name", ["slice-a#b", "slice-a?x", "../slice-a", "slice-a/..", "", "Slice", "a" * 64])
def test_name_that_a_url_would_misread_is_refused(env: TpuEnvironment, name: str) -> None:
    env.api.create("slice-a", BODY)
    for call in (env.api.node, env.api.queued_resource, lambda one: env.api.delete_node(one, "x")):
        with pytest.raises(BadSliceError, match="is no name of a slice"):
            call(name)
    with pytest.raises(BadSliceError, match="is no name of a slice"):
        env.api.create(name, BODY)
    with pytest.raises(BadEndpointError, match="is no zone or region"):
        TpuApi("my-project", f"{env.api.zone}#{name}")


def test_queued_resource_is_recreated_from_its_read_body(api: TpuApi) -> None:
    body = queued("slice-a", "slice-b", queueingPolicy={"validUntilDuration": "3600s"})
    api.create("both", body)
    assert is_queue_body(body)
    until(lambda: api.queued_resource("both").state == "ACTIVE", "ACTIVE")
    [found] = api.queued_resources()
    assert found.nodes == ("slice-a", "slice-b")
    assert {node.queue for node in api.nodes()} == {"both"}
    api.delete_queued_resource("both", found.identity)
    assert api.nodes() == []
    api.create("both", found.body)
    again = api.queued_resource("both")
    assert (again.body, again.nodes) == (found.body, found.nodes)


def test_every_page_of_a_list_is_read(env: TpuEnvironment) -> None:
    names = sorted(f"slice-{number}" for number in range(101))
    state = env.cloud.service.state
    with state.changed:
        for name in names:
            state.add_node(f"{env.api.parent}/nodes/{name}", types.Node(), slice_type("v4-8"))
    assert sorted(node.name for node in env.api.nodes()) == names


def test_stock_out_and_exceeded_quota_are_distinguished(api: TpuApi, env: TpuEnvironment) -> None:
    supply = env.cloud.service.state.supply
    supply.is_out = True
    with pytest.raises(StockOutError, match="no more capacity"):
        api.create("slice-a", BODY)
    supply.is_out, supply.quota = False, {"v4-16": 0}
    with pytest.raises(QuotaError, match="v4-16"):
        api.create("slice-a", BODY)


@pytest.mark.parametrize("status", [408, 499, 503])
def test_passing_http_failure_is_retried(env: TpuEnvironment, status: int) -> None:
    env.cloud.service.fail_next(2, status)
    assert env.api.nodes() == []
    assert len(env.cloud.service.log()) == 3


@pytest.mark.parametrize(
    ("code", "message", "error"),
    [
        ("UNAVAILABLE", "The service is down", "listing the nodes"),
        ("CANCELLED", "The operation was cancelled", "listing the nodes"),
        ("RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota).", "less often"),
    ],
)
def test_passing_refusal_is_retried_for_a_while(
    api: TpuApi, env: TpuEnvironment, code: str, message: str, error: str
) -> None:
    env.cloud.service.refuse_next(2, code, message)
    assert api.nodes() == []
    api.retry_timeout_s = 0.0
    env.cloud.service.refuse_next(1, code, message)
    with pytest.raises(TpuUnreachableError, match=error):
        api.nodes()


def test_only_existing_name_is_a_conflict(api: TpuApi, env: TpuEnvironment) -> None:
    env.cloud.service.refuse_next(1, "ABORTED", "The resource is being changed", "CreateNode")
    with pytest.raises(TpuAbortedError, match="being changed"):
        api.create("slice-a", BODY)
    env.cloud.service.fail_operations(1, "create", "ABORTED", "The zone is being served")
    with pytest.raises(TpuAbortedError, match="being served"):
        api.create("slice-a", BODY)
    env.cloud.service.refuse_next(1, "FAILED_PRECONDITION", "Enable the API", "CreateNode")
    with pytest.raises(TpuPreconditionError, match="Enable"):
        api.create("slice-a", BODY)
    api.create("slice-a", BODY)
    with pytest.raises(TpuConflictError, match="slice-a"):
        api.create("slice-a", BODY)


def test_server_filled_fields_are_left_out_on_recreation(api: TpuApi, env: TpuEnvironment) -> None:
    api.create("slice-a", BODY)
    assert env._held("slice-a").node.cidr_block
    node = api.node("slice-a")
    api.delete_node("slice-a", node.identity)
    api.create("slice-a", node.body)
    with pytest.raises(BadSliceError, match="conflicts"):
        api.create("slice-b", {**BODY, "cidrBlock": "10.128.0.0/29"})


def test_lost_connection_is_retried(env: TpuEnvironment) -> None:
    api = env.new_api(retry_timeout_s=60.0)
    api.nodes()
    env.cloud.stop()
    back = threading.Timer(0.3, env.cloud.start)
    back.start()
    assert api.nodes() == []
    back.join()


def test_refusal_is_not_retried(env: TpuEnvironment) -> None:
    env.cloud.service.fail_next(1, 403)
    with pytest.raises(TpuDeniedError, match=r"roles/tpu\.admin"):
        env.api.nodes()
    assert len(env.cloud.service.log()) == 1


def test_a_body_with_an_unknown_field_or_type_is_refused_by_name(api: TpuApi) -> None:
    with pytest.raises(BadSliceError, match="acceleratorTyp"):
        api.create("slice-a", {"acceleratorTyp": "v4-16", "runtimeVersion": "x"})
    with pytest.raises(BadSliceError, match="v4-17"):
        api.create("slice-a", {"acceleratorType": "v4-17", "runtimeVersion": "x"})


@pytest.mark.slow
def test_delete_waits_for_concurrent_deletion(api: TpuApi, env: TpuEnvironment) -> None:
    env.create("slice-a")
    env.set_state("slice-a", "DELETING")
    identity = api.node("slice-a").identity

    def drop() -> None:
        state = env.cloud.service.state
        with state.changed:
            state.drop(env._held("slice-a"))

    gone = threading.Timer(0.3, drop)
    gone.start()
    api.delete_node("slice-a", identity)
    gone.join()
    api.delete_node("slice-a", identity)  # deleting a missing node is no error


def test_endless_operation_wait_times_out(env: TpuEnvironment) -> None:
    env.cloud.service.state.supply.slow_s = 60.0
    with pytest.raises(OperationTimeoutError, match="slice-a"):
        env.api.create("slice-a", BODY, timeout_s=0.2)


@pytest.mark.parametrize(
    "endpoint",
    ["tpu.example", "http://tpu.example", "ftp://127.0.0.1", "https://me:sesame@tpu.example"]
    + ["https://tpu.example?key=sesame", "https://tpu.example/sesame", "https://tpu.example:sesame", "http://[sesame"],
)
def test_endpoint_needs_tls_or_loopback_and_is_never_quoted(endpoint: str) -> None:
    with pytest.raises(BadEndpointError, match="https") as refused:
        TpuApi("p", "z", endpoint=endpoint)
    assert "sesame" not in str(refused.value)
    with pytest.raises(BadEndpointError, match="write 'rest' or 'grpc'"):
        TpuApi("p", "z", endpoint="http://127.0.0.1:1", transport="carrier pigeon")


def test_loopback_endpoint_bypasses_environment_proxy(env: TpuEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert env.new_api(retry_timeout_s=0.0).nodes() == []


def test_concurrent_calls_keep_their_connections(env: TpuEnvironment, caplog: pytest.LogCaptureFixture) -> None:
    api, together = env.new_api(), threading.Barrier(MAX_CONCURRENT_CALLS)
    env.cloud.latency_s = 0.1

    def list_nodes(_: int) -> None:
        together.wait()
        api.nodes()

    with ThreadPoolExecutor(MAX_CONCURRENT_CALLS) as pool:
        list(pool.map(list_nodes, range(2 * MAX_CONCURRENT_CALLS)))
    assert "pool is full" not in caplog.text
