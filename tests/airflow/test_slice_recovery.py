"""The recovery DAG in the real scheduler, on a Ray cluster whose slices come from the Cloud TPU of the rehearsal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.airflow.conftest import House, until
from tradewind.cloud_tpu.tpu_api import TpuApi
from tradewind.rehearsal.local_ray import LocalRay
from tradewind.rehearsal.processes import LocalStack
from tradewind.rehearsal.rehearsal_cloud import RehearsalCloud

pytestmark = [pytest.mark.airflow, pytest.mark.ray, pytest.mark.slow]

BODY = {
    "acceleratorType": "v4-16",
    "runtimeVersion": "tpu-ubuntu2204-base",
    "labels": {"cluster": "recovered"},
    "schedulingConfig": {"spot": True},
}


@pytest.fixture
def cloud(house: House, tmp_path: Path) -> Iterator[RehearsalCloud]:
    stack = LocalStack(tmp_path / "cloud")
    cloud = RehearsalCloud(stack, LocalRay(stack, num_cpus=1))
    cloud.start()
    try:
        api = TpuApi("rehearsal", cloud.zone, endpoint=cloud.url, poll_s=0.2)
        api.create("slice-a", BODY)
        connect(house, cloud, tmp_path)
        yield cloud
    finally:
        cloud.stop()
        stack.stop(grace_seconds=1.0)
    assert stack.processes() == []


def connect(house: House, cloud: RehearsalCloud, tmp_path: Path) -> None:
    ray = cloud.ray.connection
    extra = ray["extra"] | {"bucket": str(tmp_path / "bucket")}
    house.api.put_connection("tpu_cluster", ray | {"extra": json.dumps(extra)})
    extra = {"project": "rehearsal", "is_anonymous": True, "tpu_endpoint": cloud.url}
    house.api.put_connection("tpu_cloud", {"conn_type": "google_cloud_platform", "extra": json.dumps(extra)})
    cluster = {
        "ray_conn_id": "tpu_cluster",
        "gcp_conn_id": "tpu_cloud",
        "zone": cloud.zone,
        "labels": {"cluster": "recovered"},
        "poke_interval": 1.0,
    }
    done = house.airflow.cli("variables", "set", "tradewind_slice_recovery", json.dumps([cluster]))
    assert done.returncode == 0, done.stderr


def test_a_preempted_slice_is_replaced_and_found_free_and_a_healthy_one_is_left_alone(
    house: House, cloud: RehearsalCloud
) -> None:
    api = TpuApi("rehearsal", cloud.zone, endpoint=cloud.url, poll_s=0.2)
    identity = api.node("slice-a").identity
    cloud.preempt("slice-a")
    waiting = house.begin("tpu_slices")
    until(lambda: waiting.states().get("in_triggerer") == "deferred", "the sensor to wait")

    repair = house.run("slice_recovery")
    assert repair.state == "success", repair.states()
    node = api.node("slice-a")
    assert node.state == "READY" and node.identity != identity and node.body.items() >= BODY.items()
    assert cloud.ray.status().slices == {"slice-a": 2}
    log = house.api.task_log("slice_recovery", repair.run_id, "recover", 1, map_index=0)
    assert "Google says PREEMPTED" in log and "READY, and all 2 hosts are registered" in log
    deletions = [one for one in cloud.requests() if one["call"] == "DeleteNode"]
    assert [one["answer"] for one in deletions] == ["OK"]

    waiting.wait()
    assert waiting.states() == {"in_triggerer": "success", "in_worker": "success"}
    assert house.api.xcom("tpu_slices", waiting.run_id, "in_triggerer") == ["slice-a"]

    writes = [one for one in cloud.requests() if one["call"].startswith(("Create", "Delete"))]
    assert house.run("slice_recovery").state == "success"
    assert [one for one in cloud.requests() if one["call"].startswith(("Create", "Delete"))] == writes
