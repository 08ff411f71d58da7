"""LocalRay: clusters start, stay separate and leave no processes or files behind."""

from __future__ import annotations

import inspect
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.waiting import until
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay, LocalRayError, LocalSlice, head_memory
from tradewind.rehearsal.local.ray_start import DASHBOARD_MODULES

pytestmark = pytest.mark.ray
MODULES = {DASHBOARD_MODULES: "JobHead,NodeHead,ReportHead,StateHead"}


@pytest.fixture(scope="module")
def two_clusters(tmp_path_factory):
    """Run two clusters at once on one machine, in one stack; the first has a slice."""
    stack = LocalStack(tmp_path_factory.mktemp("two"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPU_NAME", "the-callers")
        patch.setenv("A_SECRET_OF_THE_CALLER", "x")
        clusters = [
            LocalRay(stack, token="", name="east", num_cpus=2, slices=[LocalSlice("tpu-east", "v4-8")], env=MODULES),
            LocalRay(stack, token="", name="west", num_cpus=3),
        ]
        try:
            with ThreadPoolExecutor() as pool:
                list(pool.map(LocalRay.start, clusters))
            yield clusters
        finally:  # also if one of them did not start
            for cluster in clusters:
                cluster.stop()
    assert stack.processes() == []


def run_job(cluster: LocalRay, entrypoint: str, resources: dict[str, float]) -> str:
    from ray.job_submission import JobSubmissionClient

    client = JobSubmissionClient(cluster.address)
    job = client.submit_job(entrypoint=entrypoint, entrypoint_resources=resources)
    until(lambda: client.get_job_status(job).is_terminal(), "the job", lambda: client.get_job_logs(job))
    log = client.get_job_logs(job)
    assert client.get_job_status(job).value == "SUCCEEDED", log
    return log


def test_each_cluster_has_only_its_own_nodes(two_clusters):
    east, west = two_clusters
    assert (len(east.status().nodes), east.status().slices) == (2, {"tpu-east": 1})
    (head,) = west.status().nodes
    assert head.resources["CPU"] == 3
    assert not any("TPU" in name for name in head.resources), "a head offers no TPUs, whatever its caller's env"
    assert west.status().slices == {}


def test_simulated_host_has_labels_and_resources_of_real_one(two_clusters):
    nodes = two_clusters[0].status().nodes
    (host,) = [node for node in nodes if "TPU" in node.resources]
    assert host.ip.startswith("127.") and host.ip != "127.0.0.1"
    assert len({node.ip for node in nodes}) == len(nodes), "every node has its own address"
    expected = {"slice-name": "tpu-east", "worker-id": "0", "topology": "2x2x1", "pod-type": "v4-8"}
    assert {name: host.labels[f"ray.io/tpu-{name}"] for name in expected} == expected
    assert [host.resources[name] for name in ("TPU", "TPU-v4-8-head", "tpu-east")] == [4, 1, 1]


@pytest.mark.parametrize("node", ["node:__internal_head__", "tpu-east"])
def test_caller_environment_and_home_do_not_reach_job(two_clusters, node):
    east, _ = two_clusters
    log = run_job(east, "env", {node: 0.1})
    assert ("TPU_NAME=tpu-east" in log) == (node == "tpu-east"), "the log is that of the job's node"
    assert "A_SECRET_OF_THE_CALLER" not in log and "the-callers" not in log
    assert f"HOME={east.stack.root / 'home'}" in log
    assert list((east.stack.root / "home").rglob("auth_token")) == []


def test_slice_can_be_added_and_killed(two_clusters):
    _, west = two_clusters
    west.start_slice(LocalSlice("tpu-west", "v4-8"))
    assert west.status().slices == {"tpu-west": 1}
    host = west.host_stack("tpu-west", 0)
    assert west.kill_host("tpu-west", 0) > 0
    assert host.processes() == []
    assert len([node for node in west.status().nodes if "TPU" not in node.resources]) == 1, "the head lives"


@pytest.mark.long
def test_host_rejected_by_ray_is_started_again(two_clusters):
    _, west = two_clusters
    host = west.host_stack("slow", 0)
    with ThreadPoolExecutor() as pool:
        started = pool.submit(west.start_slice, LocalSlice("slow", "v4-8"))
        while not (raylets := [process for process in host.processes() if "raylet" in process.name()]):
            assert not started.done()
            time.sleep(0.01)
        raylets[0].suspend()  # Ray waits 30 s for a host
        started.result()
    assert west.status().slices == {"slow": 1} and not raylets[0].is_running()
    west.kill_slice("slow")


def test_failed_start_reports_why_and_leaves_no_process(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cluster = LocalRay(LocalStack(tmp_path), token="", num_cpus=1, dashboard_port=port)
        try:
            with pytest.raises(LocalRayError, match=rf"(?s)Ray node head ended with code 1 .*log ends with:.*{port}"):
                cluster.start()
            assert cluster.stack.processes() == []
        finally:
            cluster.stop()


def test_hosts_wait_for_head_as_long_as_its_start_may_take(tmp_path):
    start_s = inspect.signature(LocalRay.start_head).parameters["timeout_seconds"].default
    assert float(head_memory(tmp_path)["RAY_gcs_rpc_server_reconnect_timeout_s"]) >= start_s


def test_head_runs_named_dashboard_modules_but_no_client_server(two_clusters):
    commands = [" ".join(process.cmdline()) for process in two_clusters[0].stack.processes()]
    assert any("gcs_server" in command for command in commands)
    assert not any("ray.util.client.server" in command for command in commands)
    loaded = [found[1] for command in commands if (found := re.match(r"ray-dashboard-(\w+)-", command))]
    assert sorted(loaded) == MODULES[DASHBOARD_MODULES].split(",")


def test_stopping_one_cluster_leaves_the_other_alone(two_clusters):
    east, west = two_clusters
    folder = east._temp
    assert folder is not None and folder.is_dir()
    east.stop()
    assert east.stack.processes() == []
    assert not folder.exists()
    assert len(west.status().nodes) >= 1
