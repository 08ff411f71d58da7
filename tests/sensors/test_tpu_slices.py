"""TPU slice sensors, triggers and hook on the rehearsal's Cloud TPU, without a scheduler."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from airflow.triggers.base import TriggerEvent

from tests.cloud_tpu.cloud import BODY, TpuEnvironment, serving
from tests.support.waiting import until
from tradewind.cloud_tpu.errors import BadEndpointError
from tradewind.cloud_tpu.slice_types import POD_TYPE_LABEL, SLICE_NAME_LABEL, WORKER_ID_LABEL
from tradewind.ray_jobs.nodes import NodeInfo, RegisteredSlice, hosts_alive, registered_slices
from tradewind.rehearsal.tpu.cloud import LocalTpuCloud
from tradewind.rehearsal.tpu.grpc import TpuGrpcServer
from tradewind.sensors.tpu_slices import (
    SliceNeedsPersonError,
    SliceRepairError,
    TpuSliceReadySensor,
    TpuSliceRecoverySensor,
)
from tradewind.tasks.errors import BadInputError, ClusterRefusedError
from tradewind.triggers.tpu_slices import TpuSliceReadyTrigger, TpuSliceRecoveryTrigger


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TpuEnvironment]:
    """Test environment: a cloud at connection ``tpus``, an unresponsive Ray cluster and a bucket."""
    connect(monkeypatch, "silent", "ray", host="http://127.0.0.1:9", bucket=str(tmp_path / "bucket"))
    with serving(LocalTpuCloud()) as cloud:
        connect(monkeypatch, "tpus", "google_cloud_platform", project="rehearsal", tpu_endpoint=cloud.url)
        yield TpuEnvironment(cloud, tmp_path / "records")


def connect(monkeypatch: pytest.MonkeyPatch, name: str, kind: str, host: str = "", **extra: Any) -> None:
    described = {"conn_type": kind, "host": host, "extra": extra}
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(described))


def recovery(**arguments: Any) -> TpuSliceRecoverySensor:
    given = {"zone": "us-central2-b", "gcp_conn_id": "tpus", "ray_conn_id": "silent", "labels": {"cluster": "one"}}
    return TpuSliceRecoverySensor(task_id="recover", **{**given, "deferrable": True, **arguments})


def trigger_of(sensor: Any) -> Any:
    """Return the sensor's trigger after serialization, as the triggerer gets it."""
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})
    _, arguments = deferred.value.trigger.serialize()
    return type(deferred.value.trigger)(**json.loads(json.dumps(arguments)))


async def event_of(trigger: Any) -> dict[str, Any]:
    event: TriggerEvent = await anext(trigger.run())
    return dict(event.payload)


async def test_dry_run_reports_the_same_in_triggerer_and_worker(env: TpuEnvironment) -> None:
    env.create_preempted("slice-a")
    sensor = recovery(dry_run=True)
    trigger = trigger_of(sensor)
    assert isinstance(trigger, TpuSliceRecoveryTrigger)
    result = sensor.execute_complete({}, await event_of(trigger))
    assert result["done"] == ["slice-a: would delete and create again"]
    assert [row["verdict"] for row in result["slices"]] == ["dead"]
    assert (await asyncio.to_thread(sensor.poke, {})).xcom_value == result


async def test_a_cluster_without_slices_is_done_at_once(env: TpuEnvironment) -> None:
    found = recovery().execute_complete({}, await event_of(trigger_of(recovery())))
    assert found == {"slices": [], "done": [], "stuck": []}


async def test_once_ends_after_one_pass(env: TpuEnvironment) -> None:
    env.create("slice-a")  # READY, but Ray does not answer: without ``once`` the sensor polls on
    event = await asyncio.wait_for(event_of(trigger_of(recovery(once=True))), 60.0)
    poke = await asyncio.to_thread(recovery(once=True, deferrable=False).poke, {})
    for found in (recovery(once=True).execute_complete({}, event), poke.xcom_value):
        assert [row["verdict"] for row in found["slices"]] == ["wait"]
    assert not (await asyncio.to_thread(recovery().poke, {})).is_done


async def test_slice_needing_manual_recovery_fails_task_by_name(env: TpuEnvironment) -> None:
    env.create("slice-a", {**BODY, "schedulingConfig": {"reserved": True}})
    env.preempt("slice-a")
    xcoms: dict[str, Any] = {}
    ti = SimpleNamespace(xcom_push=lambda key, value: xcoms.update({key: value}))
    with pytest.raises(SliceNeedsPersonError, match=r"slice-a.*reserved"):
        recovery().execute_complete({"ti": ti}, await event_of(trigger_of(recovery())))
    assert [text.partition(":")[0] for text in xcoms["return_value"]["stuck"]] == ["slice-a"]


async def test_api_refusal_fails_the_task_with_its_message(env: TpuEnvironment) -> None:
    env.cloud.service.fail_next(1, 403)
    with pytest.raises(SliceRepairError, match=r"roles/tpu\.admin"):
        recovery().execute_complete({}, await event_of(trigger_of(recovery())))
    env.cloud.service.fail_next(1, 403)
    with pytest.raises(SliceRepairError, match=r"roles/tpu\.admin"):
        recovery().poke({})


async def test_cancelled_trigger_leaves_no_thread_running(env: TpuEnvironment) -> None:
    env.create_preempted("slice-a")
    env.cloud.service.state.supply.slow_s = 60.0
    task = asyncio.create_task(event_of(trigger_of(recovery())))
    await asyncio.to_thread(until, lambda: len(env.calls("CreateNode")) == 2, "the creation to begin", 60.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    def is_over() -> bool:
        return not any(thread.name.startswith("slice-repair") for thread in threading.enumerate())

    await asyncio.to_thread(until, is_over, "the threads to end")


def test_recovery_without_slices_or_with_bad_option_is_refused() -> None:
    with pytest.raises(BadInputError, match="expected"):
        recovery(labels=None).execute({})
    with pytest.raises(BadInputError, match="host_grace"):
        recovery(settings={"host_grace": 3}).execute({})
    assert trigger_of(recovery(expected=["slice-a"])).request["expected"] == {"slice-a": None}


def test_recovery_needs_a_folder_for_its_records(env: TpuEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, "silent", "ray", host="http://127.0.0.1:9")
    with pytest.raises(SliceRepairError, match="records"):
        recovery().poke({})


def test_hook_uses_connection_unless_arguments_override_it(
    env: TpuEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tradewind.hooks.cloud_tpu import CloudTpuHook

    env.create("slice-a")
    assert [node.name for node in CloudTpuHook("tpus").tpu_api("us-central2-b").nodes()] == ["slice-a"]
    server = TpuGrpcServer(env.cloud.service)
    server.start()
    endpoint = f"http://{server.address}"
    connect(monkeypatch, "bare", "google_cloud_platform")
    hook = CloudTpuHook("bare", endpoint=endpoint, transport="grpc")
    assert [node.name for node in hook.tpu_api("us-central2-b", "rehearsal").nodes()] == ["slice-a"]
    server.stop()
    assert env.cloud.service.log()[-1]["transport"] == "grpc"
    with pytest.raises(BadEndpointError, match="project"):
        hook.tpu_api("us-central2-b")


def test_ready_sensor_passes_slice_shape_to_trigger() -> None:
    sensor = TpuSliceReadySensor(task_id="wait", slice_type="v4-16", count=2, deferrable=True, poke_interval=5.0)
    trigger = trigger_of(sensor)
    assert isinstance(trigger, TpuSliceReadyTrigger)
    assert (trigger.slice_type, trigger.hosts, trigger.count, trigger.interval_s) == ("v4-16", 2, 2, 5.0)
    assert sensor.execute_complete({}, {"slices": ["a", "b"], "error": None}) == ["a", "b"]
    with pytest.raises(ClusterRefusedError, match="no token"):
        sensor.execute_complete({}, {"slices": [], "error": "no token"})
    with pytest.raises(BadInputError, match="v4-17"):
        TpuSliceReadySensor(task_id="other", slice_type="v4-17", deferrable=True).execute({})


def host(slice_name: str, worker: int, node_id: str, *, alive: bool = True, free: float | None = 4.0) -> NodeInfo:
    labels = {SLICE_NAME_LABEL: slice_name, WORKER_ID_LABEL: str(worker), POD_TYPE_LABEL: "v4-16"}
    left = None if free is None else {"TPU": free}
    return NodeInfo(node_id, is_alive=alive, total={"TPU": 4.0}, free=left, labels=labels)


def test_slice_is_free_without_used_chips_and_hosts_count_once() -> None:
    nodes = [
        NodeInfo("head", is_head=True),
        host("whole", 0, "1"),
        host("whole", 1, "2"),
        host("busy", 0, "3"),
        host("busy", 1, "4", free=0.0),
        host("half", 0, "5"),
        host("half", 0, "6"),  # the host's former node, which Ray still lists as alive
        host("half", 1, "7", alive=False),
        host("unknown", 0, "8", free=None),
    ]
    assert registered_slices(nodes) == [
        RegisteredSlice("busy", "v4-16", 2, False),
        RegisteredSlice("half", "v4-16", 1, True),
        RegisteredSlice("unknown", "v4-16", 1, None),
        RegisteredSlice("whole", "v4-16", 2, True),
    ]
    assert hosts_alive(nodes) == {"busy": 2, "half": 1, "unknown": 1, "whole": 2}
