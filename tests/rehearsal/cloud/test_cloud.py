"""The rehearsal cloud: slices from the TPU API are real Ray nodes, and faults hit real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
import requests
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import tpu_v2

from tests.support.open_ports import check_strangers_are_refused
from tests.support.waiting import until
from tradewind.rehearsal.cloud.cloud import RehearsalCloud
from tradewind.rehearsal.cloud.control_client import CONTROL_FILE, RehearsalControl, RehearsalControlError
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay

pytestmark = pytest.mark.ray
SECONDS = 180


@pytest.fixture(scope="module")
def cloud(tmp_path_factory) -> Iterator[RehearsalCloud]:
    """Yield a cloud with a slice of two hosts and a one-host slice from a queued resource."""
    stack = LocalStack(tmp_path_factory.mktemp("cloud"))
    cloud = RehearsalCloud(stack, LocalRay(stack, num_cpus=1))
    cloud.start()
    try:
        client = client_of(cloud)
        node = {"accelerator_type": "v4-8", "runtime_version": "tpu-vm"}
        body = {"tpu": {"node_spec": [{"node_id": "queued", "node": node}]}, "spot": {}}
        client.create_queued_resource(parent=cloud.parent, queued_resource_id="queue", queued_resource=body)
        cloud.wait_until("queued", "READY", SECONDS)
        wide = tpu_v2.Node(accelerator_type="v4-16", runtime_version="tpu-vm")
        client.create_node(parent=cloud.parent, node_id="wide", node=wide).result(timeout=SECONDS)
        yield cloud
    finally:
        cloud.stop()
    assert stack.processes() == []


def client_of(cloud: RehearsalCloud) -> tpu_v2.TpuClient:
    options = ClientOptions(api_endpoint=cloud.url)
    return tpu_v2.TpuClient(transport="rest", credentials=AnonymousCredentials(), client_options=options)


def env_of_host(cloud: RehearsalCloud, name: str, worker: int) -> dict[str, str]:
    return cloud.ray.host_stack(name, worker).processes()[0].environ()


def test_non_loopback_listeners_refuse_requests_without_token(cloud):
    ray = cloud.ray
    check_strangers_are_refused(ray.stack, ray.token)
    assert ray.token_file.stat().st_mode & 0o777 == 0o600
    assert {requests.get(f"{ray.address}{path}", timeout=30).status_code for path in ("/api/jobs/", "/nodes")} == {401}


def is_preempted(host: str) -> str:
    url = f"http://{host}/computeMetadata/v1/instance/preempted"
    return requests.get(url, headers={"Metadata-Flavor": "Google"}, timeout=10).text


def test_ready_slice_hosts_join_ray_and_find_cloud(cloud):
    assert cloud.ray.status().slices == {"wide": 2, "queued": 1}
    endpoints = client_of(cloud).get_node(name=f"{cloud.parent}/nodes/wide").network_endpoints
    assert {endpoint.ip_address for endpoint in endpoints} <= {node.ip for node in cloud.ray.status().nodes}
    for worker, endpoint in enumerate(endpoints):
        env = env_of_host(cloud, "wide", worker)
        assert cloud.env().items() <= env.items()
        assert env["GCE_METADATA_HOST"].startswith(f"{endpoint.ip_address}:")
        assert is_preempted(env["GCE_METADATA_HOST"]) == "FALSE"
    head = LocalStack(cloud.ray.stack.root / "head").processes()[0].environ()
    assert cloud.env().items() <= head.items(), "a job's driver finds it as well"


def test_preempted_host_gets_notice_then_all_processes_end(cloud):
    host = env_of_host(cloud, "queued", 0)["GCE_METADATA_HOST"]
    cloud.preempt("queued", notice_s=3.0)
    until(lambda: is_preempted(host) == "TRUE", "the notice")
    assert cloud.ray.host_stack("queued", 0).processes() != [], "until the deadline"
    cloud.wait_until("queued", "PREEMPTED", SECONDS)
    assert cloud.ray.host_stack("queued", 0).processes() == []
    with pytest.raises(requests.ConnectionError):
        is_preempted(host)
    name = f"{cloud.parent}/queuedResources/queue"
    until(lambda: client_of(cloud).get_queued_resource(name=name).state.state.name == "SUSPENDED", "SUSPENDED")
    with pytest.raises(RehearsalControlError, match="Slice queued is PREEMPTED, not READY"):
        cloud.preempt("queued")
    client_of(cloud).delete_queued_resource({"name": name, "force": True}).result(timeout=SECONDS)
    assert [each["name"] for each in cloud.status()["slices"]] == ["wide"]


def test_hang_stops_process_of_pod_but_not_its_guard(cloud):
    with pytest.raises(RehearsalControlError, match="No process of a pod runs on host 0 of slice wide"):
        cloud.hang_host("wide", 0)
    env = {**os.environ, "TRADEWIND_PROCESS_ID": "0"}
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    started = [cloud.ray.host_stack("wide", 0).start("pod", [*sleeper, name], env) for name in ("x", "process_guard")]
    training, guard = (psutil.Process(child.pid) for child in started)
    try:
        assert cloud.hang_host("wide", 0) == 1
        until(lambda: training.status() == psutil.STATUS_STOPPED, "SIGSTOP")
        assert guard.status() != psutil.STATUS_STOPPED
        cloud.resume_host("wide", 0)
        until(lambda: training.status() != psutil.STATUS_STOPPED, "SIGCONT")
    finally:
        for child in started:
            child.kill()
            child.wait()


def test_control_requires_the_token_of_its_private_file(cloud, tmp_path):
    cloud.write_control(tmp_path)
    assert (tmp_path / CONTROL_FILE).stat().st_mode & 0o777 == 0o600
    control = RehearsalControl.of_folder(tmp_path)
    assert control.ask("status")["slices"][0]["hosts"][1]["in_ray"] is True
    assert {call["call"] for call in control.ask("requests")} >= {"CreateNode", "CreateQueuedResource"}
    with pytest.raises(RehearsalControlError, match="no slice 'none'; there are: wide"):
        control.do("preempt", name="none")
    with pytest.raises(RehearsalControlError, match=r"preempt\(name.*does not accept the arguments"):
        control.do("preempt", slice="wide")
    with pytest.raises(RehearsalControlError, match="There is no POST /destroy"):
        control.do("destroy")
    with pytest.raises(RehearsalControlError, match="token"):
        RehearsalControl(control.url, "guessed").do("preempt", name="wide")
    (tmp_path / CONTROL_FILE).chmod(0o644)
    with pytest.raises(RehearsalControlError, match="accessible to other users"):
        RehearsalControl.of_folder(tmp_path)


CHECKPOINT = """
import numpy, tensorstore
store = {"driver": "gcs", "bucket": "models", "path": "run/checkpoint/"}
values = numpy.arange(100_000, dtype="float32").reshape(100, 1000)
for kvstore in (store, {"driver": "ocdbt", "base": {**store, "path": "run/ocdbt/"}}):
    spec = {"driver": "zarr3", "kvstore": kvstore}
    tensorstore.open(spec, create=True, dtype="float32", shape=values.shape).result().write(values).result()
    assert (tensorstore.open(spec).result().read().result() == values).all()
    assert (tensorstore.open(spec).result()[7, 3:9].read().result() == values[7, 3:9]).all()
    found = tensorstore.KvStore.open(kvstore).result().list().result()
    assert b"zarr.json" in found, found
    tensorstore.KvStore.open(kvstore).result().delete_range(tensorstore.KvStore.KeyRange()).result()
"""


def test_tensorstore_stores_checkpoints_in_its_cloud_storage(cloud, tmp_path):
    cloud.storage.buckets.create("models")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **cloud.env()}
    done = subprocess.run([sys.executable, "-c", CHECKPOINT], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert cloud.storage.requests["read"] > 0


def test_repaired_slice_returns_and_dead_host_keeps_ready(cloud):
    before = {node.ip for node in cloud.ray.status().nodes}
    cloud.repair("wide", repair_s=0.5)
    assert client_of(cloud).get_node(name=f"{cloud.parent}/nodes/wide").state.name == "REPAIRING"
    cloud.wait_until("wide", "READY", SECONDS)
    (wide,) = cloud.status()["slices"]
    assert not {host["address"] for host in wide["hosts"]} & before, "new hosts"
    assert cloud.kill_host("wide", 1) > 0
    assert cloud.ray.host_stack("wide", 1).processes() == []
    assert client_of(cloud).get_node(name=f"{cloud.parent}/nodes/wide").state.name == "READY"
    with pytest.raises(RehearsalControlError, match="Host 1 of slice wide no longer runs"):
        cloud.kill_host("wide", 1)
    client_of(cloud).delete_node(name=f"{cloud.parent}/nodes/wide").result(timeout=SECONDS)
    assert cloud.ray.host_stack("wide", 0).processes() == []
    assert cloud.status()["slices"] == []
