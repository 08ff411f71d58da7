"""Google's own client against the rehearsal's Cloud TPU, over REST and gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from google.cloud.tpu_v2 import types

from tests.cloud_tpu.cloud import BODY, World, queued
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
def api(request: pytest.FixtureRequest, world: World) -> Iterator[TpuApi]:
    if request.param == "rest":
        yield world.api
        return
    server = TpuGrpcServer(world.cloud.service)
    server.start()
    yield world.new_api(endpoint=f"http://{server.address}", transport="grpc")
    server.stop()


def test_a_node_is_created_read_listed_and_deleted(api: TpuApi, world: World) -> None:
    api.create("slice-a", BODY)
    node = api.wait_until_ready("slice-a")
    assert (node.name, node.slice_type, node.hosts, node.labels) == ("slice-a", "v4-16", 2, {"cluster": "one"})
    assert node.body.items() >= BODY.items()
    assert node.created_at == pytest.approx(world.now, abs=60)
    assert [one.name for one in api.nodes()] == ["slice-a"]
    with pytest.raises(TpuConflictError, match="another one"):
        api.delete_node("slice-a", "an older one's")
    api.delete_node("slice-a", node.identity)
    assert api.nodes() == []
    with pytest.raises(TpuNotFoundError, match="slice-a"):
        api.node("slice-a")


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


def test_every_page_of_a_list_is_read(world: World) -> None:
    names = sorted(f"slice-{number}" for number in range(101))
    state = world.cloud.service.state
    with state.changed:
        for name in names:
            state.add_node(f"{world.api.parent}/nodes/{name}", types.Node(), slice_type("v4-8"))
    assert sorted(node.name for node in world.api.nodes()) == names


def test_a_name_that_is_taken_is_a_conflict(api: TpuApi) -> None:
    api.create("slice-a", BODY)
    with pytest.raises(TpuConflictError, match="slice-a"):
        api.create("slice-a", BODY)


def test_a_stock_out_and_a_used_up_quota_are_told_apart(api: TpuApi, world: World) -> None:
    supply = world.cloud.service.state.supply
    supply.is_out = True
    with pytest.raises(StockOutError, match="no more capacity"):
        api.create("slice-a", BODY)
    supply.is_out, supply.quota = False, {"v4-16": 0}
    with pytest.raises(QuotaError, match="v4-16"):
        api.create("slice-a", BODY)


def test_an_unanswered_call_is_tried_again_for_a_while(api: TpuApi, world: World) -> None:
    world.cloud.service.fail_next(3, 503)
    assert api.nodes() == []
    api.patience_s = 0.0
    world.cloud.service.fail_next(1, 503)
    with pytest.raises(TpuUnreachableError, match="listing the nodes"):
        api.nodes()


@pytest.mark.parametrize("status", [408, 499])
def test_timeout_or_cancelled_response_is_retried(world: World, status: int) -> None:
    world.cloud.service.fail_next(2, status)
    assert world.api.nodes() == []
    assert len(world.cloud.service.log()) == 3


def test_a_cancelled_call_is_tried_again(api: TpuApi, world: World) -> None:
    world.cloud.service.refuse_next(2, "CANCELLED", "The operation was cancelled")
    assert api.nodes() == []


def test_rate_limited_list_is_retried_later(api: TpuApi, world: World) -> None:
    words = "Resource has been exhausted (e.g. check quota)."
    world.cloud.service.refuse_next(2, "RESOURCE_EXHAUSTED", words)
    assert api.nodes() == []
    api.patience_s = 0.0
    world.cloud.service.refuse_next(1, "RESOURCE_EXHAUSTED", words)
    with pytest.raises(TpuUnreachableError, match="less often"):
        api.nodes()


def test_only_a_name_that_is_taken_is_a_conflict(api: TpuApi, world: World) -> None:
    world.cloud.service.refuse_next(1, "ABORTED", "The resource is being changed", "CreateNode")
    with pytest.raises(TpuAbortedError, match="being changed"):
        api.create("slice-a", BODY)
    world.cloud.service.fail_operations(1, "create", "ABORTED", "The zone is being served")
    with pytest.raises(TpuAbortedError, match="being served"):
        api.create("slice-a", BODY)
    world.cloud.service.refuse_next(1, "FAILED_PRECONDITION", "Enable the API", "CreateNode")
    with pytest.raises(TpuPreconditionError, match="Enable"):
        api.create("slice-a", BODY)
    api.create("slice-a", BODY)


def test_server_filled_fields_are_left_out_on_recreation(api: TpuApi, world: World) -> None:
    api.create("slice-a", BODY)
    assert world._held("slice-a").node.cidr_block
    node = api.node("slice-a")
    api.delete_node("slice-a", node.identity)
    api.create("slice-a", node.body)
    with pytest.raises(BadSliceError, match="conflicts"):
        api.create("slice-b", {**BODY, "cidrBlock": "10.128.0.0/29"})


def test_a_lost_connection_is_tried_again(world: World) -> None:
    api = world.new_api(patience_s=60.0)
    api.nodes()
    world.cloud.stop()
    back = threading.Timer(0.3, world.cloud.start)
    back.start()
    assert api.nodes() == []
    back.join()


def test_a_refusal_is_not_tried_again(world: World) -> None:
    world.cloud.service.fail_next(1, 403)
    with pytest.raises(TpuDeniedError, match=r"roles/tpu\.admin"):
        world.api.nodes()
    assert len(world.cloud.service.log()) == 1


def test_a_body_with_an_unknown_field_or_type_is_refused_by_name(api: TpuApi) -> None:
    with pytest.raises(BadSliceError, match="acceleratorTyp"):
        api.create("slice-a", {"acceleratorTyp": "v4-16", "runtimeVersion": "x"})
    with pytest.raises(BadSliceError, match="v4-17"):
        api.create("slice-a", {"acceleratorType": "v4-17", "runtimeVersion": "x"})


@pytest.mark.slow
def test_delete_waits_for_concurrent_deletion(api: TpuApi, world: World) -> None:
    world.create("slice-a")
    world.set_state("slice-a", "DELETING")
    identity = api.node("slice-a").identity

    def drop() -> None:
        state = world.cloud.service.state
        with state.changed:
            state.drop(world._held("slice-a"))

    gone = threading.Timer(0.3, drop)
    gone.start()
    api.delete_node("slice-a", identity)
    gone.join()
    api.delete_node("slice-a", identity)  # deleting a missing node is no error


def test_endless_operation_wait_times_out(world: World) -> None:
    world.cloud.service.state.supply.slow_s = 60.0
    with pytest.raises(OperationTimeoutError, match="slice-a"):
        world.api.create("slice-a", BODY, timeout_s=0.2)


@pytest.mark.parametrize(
    "endpoint",
    ["tpu.example", "http://tpu.example", "ftp://127.0.0.1", "https://me:sesame@tpu.example"]
    + ["https://tpu.example?key=sesame", "https://tpu.example/sesame", "https://tpu.example:sesame", "http://[sesame"],
)
def test_endpoint_needs_tls_or_loopback_and_is_never_quoted(endpoint: str) -> None:
    with pytest.raises(BadEndpointError, match="https") as refused:
        TpuApi("p", "z", endpoint=endpoint)
    assert "sesame" not in str(refused.value)
    with pytest.raises(BadEndpointError, match="say 'rest' or 'grpc'"):
        TpuApi("p", "z", endpoint="http://127.0.0.1:1", transport="carrier pigeon")


def test_loopback_endpoint_bypasses_environment_proxy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert world.new_api(patience_s=0.0).nodes() == []


def test_as_many_connections_are_kept_as_there_are_calls_at_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    api, together = world.new_api(), threading.Barrier(MAX_CONCURRENT_CALLS)
    world.cloud.latency_s = 0.1

    def ask() -> None:
        together.wait()
        api.nodes()

    for _ in range(2):
        threads = [threading.Thread(target=ask) for _ in range(MAX_CONCURRENT_CALLS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert "pool is full" not in caplog.text
