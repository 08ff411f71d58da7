"""The maintenance DAG on a Ray cluster with slices of the TPU rehearsal, and the restart benchmark on a small head."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import requests

from benchmarks.fleet.restart import DAG_FILE, WaitingTasks, measure_on
from tests.airflow.conftest import Environment
from tests.runtime.test_stalls import put, running_attempt
from tests.support.waiting import until
from tradewind.cloud_tpu.api import TpuApi
from tradewind.rehearsal.cloud.cloud import RehearsalCloud
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay

pytestmark = [pytest.mark.airflow, pytest.mark.ray, pytest.mark.slow, pytest.mark.long]

BODY = {
    "acceleratorType": "v4-16",
    "runtimeVersion": "tpu-ubuntu2204-base",
    "labels": {"ray-cluster-name": "recovered"},
    "schedulingConfig": {"spot": True},
}

NOTIFIER = """
from airflow.sdk import BaseNotifier


class FileNotifier(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, path, text):
        super().__init__()
        self.path, self.text = path, text

    def notify(self, context):
        with open(self.path, "a") as file:
            file.write(self.text + "\\n")
"""


@pytest.fixture
def cloud(env: Environment, tmp_path: Path) -> Iterator[RehearsalCloud]:
    stack = LocalStack(tmp_path / "cloud")
    cloud = RehearsalCloud(stack, LocalRay(stack, num_cpus=1))
    cloud.start()
    try:
        connect(env, cloud, tmp_path)
        yield cloud
    finally:
        cloud.stop()
        stack.stop(grace_seconds=1.0)
    assert stack.processes() == []


def connect(env: Environment, cloud: RehearsalCloud, tmp_path: Path) -> None:
    ray = cloud.ray.connection
    extra = ray["extra"] | {"bucket": str(tmp_path / "bucket")}
    env.api.put_connection("tpu_cluster", ray | {"extra": json.dumps(extra)})
    extra = {"is_anonymous": True, "tpu_endpoint": cloud.url}
    google = {"conn_type": "google_cloud_platform", "extra": json.dumps(extra)}
    env.api.put_connection("google_cloud_default", google)


def notify_by_file(env: Environment, path: Path) -> None:
    """Give the maintenance DAG a notifier that appends to a file."""
    file = env.dags / "fleet_maintenance.py"
    stalls = "no_shard_s=45 * 60"
    before, found, after = file.read_text().partition(stalls)
    assert found
    head, marker, rest = before.partition("\nEVERY = ")
    notifier = f", notifiers=[FileNotifier({str(path)!r}, '{{{{ announcement }}}}')]"
    file.write_text(f"{head}{NOTIFIER}{marker}{rest}{stalls}{notifier}{after}")


def submit_stalled_step(cloud: RehearsalCloud, folder: Path) -> None:
    """Submit the Ray job of a step whose records have no step for 20 minutes."""
    output = running_attempt(folder, started_at=time.time() - 9e4, heartbeat_s=600)
    put(output, "metrics.jsonl", json.dumps({"step": 7, "time": time.time() - 1200}) + "\n")
    metadata = {"step": "train@abc", "output_path": output}
    ask_jobs(cloud, "", {"entrypoint": "sleep 3600", "submission_id": "job", "metadata": metadata})


def ask_jobs(cloud: RehearsalCloud, path: str, body: object = None) -> None:
    headers = {"Authorization": f"Bearer {cloud.ray.token}"}
    requests.post(f"{cloud.ray.address}/api/jobs/{path}", json=body, headers=headers, timeout=60).raise_for_status()


def test_dry_run_reports_and_next_run_repairs_the_slice(
    env: Environment, cloud: RehearsalCloud, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notify_by_file(env, notes)
    submit_stalled_step(cloud, tmp_path)
    api = TpuApi("rehearsal", cloud.zone, endpoint=cloud.url, poll_s=0.2)
    api.create("slice-a", BODY)
    api.create("left", BODY | {"acceleratorType": "v4-8", "labels": {"ray-cluster-name": "removed"}})
    identity = api.node("slice-a").identity
    cloud.preempt("slice-a")
    until(lambda: "slice-a" not in cloud.ray.status().slices, "Ray to notice")
    writes = changes(cloud)
    dry = env.run("fleet_maintenance", {"dry_run": True})
    states = dry.states()
    assert states.pop("call_a_person") == "failed" and set(states.values()) == {"success", "skipped"}, states
    assert changes(cloud) == writes
    report = env.api.xcom("fleet_maintenance", dry.run_id, "report")
    assert report["for_a_person"] == [f"removed, node of no cluster left: READY in rehearsal, {cloud.zone}"]
    assert env.api.xcom("fleet_maintenance", dry.run_id, "stalls") == [] and not notes.exists()
    slices = [line for line in report["news"] if line["about"] == "slice"]
    assert [(line["name"], line["done"]) for line in slices] == [("slice-a", "would delete and create again")]

    api.delete_node("left", api.node("left").identity)
    waiting = env.begin("tpu_slices")
    until(lambda: waiting.states().get("in_triggerer") == "deferred", "the sensor to wait")
    repair = env.run("fleet_maintenance", {"clusters": ["recovered"]})
    assert repair.state == "success", repair.states()
    node = api.node("slice-a")
    assert node.state == "READY" and node.identity != identity and node.body.items() >= BODY.items()
    log = env.api.task_log("fleet_maintenance", repair.run_id, "repair_slices", 1, map_index=0)
    assert "Google says PREEMPTED" in log
    table = " ".join(repair.log("report").split())  # column widths depend on the other findings
    assert "recovered slice slice-a dead: Google says PREEMPTED" in table

    assert notes.read_text().startswith("Step train@abc on recovered: no step for ")
    runs = [repair, env.run("fleet_maintenance", {"clusters": ["recovered"]})]
    for _ in range(2):
        runs.append(env.begin("fleet_maintenance", {"clusters": ["recovered"]}, datetime.now(UTC)))
        runs[-1].wait()
    for run in runs:
        [stalled] = env.api.xcom("fleet_maintenance", run.run_id, "stalls")
        assert (stalled["job"], stalled["what"]) == ("job", "step")
    assert len(notes.read_text().splitlines()) == 2, "once by runs without a date, once by those with one"
    ask_jobs(cloud, "job/stop")

    waiting.wait()
    assert waiting.states() == {"in_triggerer": "success", "in_worker": "success"}
    assert env.api.xcom("tpu_slices", waiting.run_id, "in_triggerer") == ["slice-a"]


def changes(cloud: RehearsalCloud) -> list[str]:
    """Return the calls that created or deleted a resource."""
    calls = [str(request["call"]) for request in cloud.requests()]
    return [call for call in calls if call.startswith(("Create", "Delete"))]


def test_restart_keeps_every_job_once_without_using_retries(env: Environment, tmp_path: Path) -> None:
    shutil.copy(DAG_FILE, env.dags)
    cost = measure_on(tmp_path, 2, WaitingTasks(env.api, 2))
    assert (cost.unmanaged, cost.tasks) == (2, 2)
    assert (cost.lost, cost.twice, cost.retries) == (0, 0, 0)
    assert cost.headless_s > 0
