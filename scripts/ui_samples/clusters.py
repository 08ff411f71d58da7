"""Two clusters that answer as real ones do: Google's services and a Ray head on loopback, in this process.

The servers are those of the tests. One cluster has slices in several states, jobs, and a restart that holds its lock;
the head of the other does not answer.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tradewind.cloud_tpu.api import TpuApi
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lock import ClusterLock
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.local.processes import free_port

PROJECT: Final = "my-project"
ZONES: Final = ("us-central2-b", "europe-west4-b")
FLEET: Final = """\
default_cluster: research
defaults:
  project: my-project
  head_service_account: head@my-project.iam.gserviceaccount.com
  worker_service_account: worker@my-project.iam.gserviceaccount.com
clusters:
  research:
    zone: us-central2-b
    generation: v4
    bucket: research
    connection: research
    token_secret: RAY_AUTH_TOKEN
    min_workers: 6
    slices: {v4-16: {min: 2}}
  europe:
    zone: europe-west4-b
    generation: v5e
    bucket: research
    connection: europe
"""
HOUR_MS: Final = 3_600_000
JOB: Final = "tiny-train-small-1"


@dataclass(frozen=True)
class SampleClusters:
    """Clusters that run.

    Attributes:
        env: The environment of an Airflow that manages them.
        head: The head of the cluster ``research``.
    """

    env: dict[str, str]
    head: Any

    def belongs_to(self, run_id: str, output_path: str) -> None:
        """Let the job of a step name its run and its output, once these exist."""
        self.head.jobs[JOB]["metadata"] |= {"airflow_run": run_id, "output_path": output_path}


@contextmanager
def sample_clusters(folder: Path) -> Iterator[SampleClusters]:
    """Run the clusters for the length of a block."""
    from tests.fleet.clouds import NumberedHosts, add_head
    from tests.support.google import LocalGoogle

    fleet = folder / "fleet.yaml"
    fleet.write_text(FLEET)
    (folder / "cluster.yaml.j2").write_text(Path("infra/cluster.yaml.j2").read_text())
    with ExitStack() as ends:
        storage = LocalCloudStorage()
        storage.start()
        ends.callback(storage.stop)
        storage.buckets.create("research")
        google = LocalGoogle(*((PROJECT, zone) for zone in ZONES), hosts=NumberedHosts())
        google.start()
        ends.callback(google.stop)
        ends.callback(google.end_all)
        services = ("COMPUTE", "TPU", "SECRET_MANAGER")
        env = {f"TRADEWIND_{name}_ENDPOINT": google.url for name in services} | {"STORAGE_EMULATOR_HOST": storage.url}
        os.environ.update(env)  # of this process's own clients
        google.secrets.put(f"projects/{PROJECT}/secrets/RAY_AUTH_TOKEN", "only-a-sample")
        add_head(google, "research")
        add_head(google, "forgotten", ip="10.0.0.9")
        create_slices(google)
        head = sample_head()
        head.start()
        ends.callback(head.stop)
        lock = ClusterLock.of(load_fleet(fleet).cluster("research"))
        ends.enter_context(lock.take("restart", "restarting Ray on 8 hosts", holder="ada@laptop"))
        silent = f"http://127.0.0.1:{free_port()}"
        env |= {
            "AIRFLOW__TRADEWIND__FLEET_FILE": str(fleet),
            "AIRFLOW_CONN_RESEARCH": json.dumps({"conn_type": "ray", "host": head.url}),
            "AIRFLOW_CONN_EUROPE": json.dumps({"conn_type": "ray", "host": silent}),
        }
        yield SampleClusters(env, head)


def create_slices(google: Any) -> None:
    """Create slices of two types, and let one be preempted."""
    api = TpuApi(PROJECT, ZONES[0], poll_s=0.01)
    labels = {"ray-cluster-name": "research", "ray-node-type": "worker", "ray-node-status": "up-to-date"}
    for number in range(1, 8):
        kind = "v4-16" if number > 5 else "v4-8"
        body = {"acceleratorType": kind, "runtimeVersion": "tpu-ubuntu2204-base", "labels": labels}
        api.create(f"ray-research-{number}", {**body, "schedulingConfig": {"spot": True}})
    service = google.tpu[PROJECT, ZONES[0]].service
    with service.state.changed:
        entry = next(each for name, each in service.state.nodes.items() if name.endswith("ray-research-3"))
        service.lives.preempt(entry, 0.0)


def sample_head() -> Any:
    """Return a head with jobs of tasks and of users; four of its slices have joined."""
    from tests.fleet.watched import WatchedHead

    head = WatchedHead()
    head.slices = {"ray-research-1": 1, "ray-research-2": 1, "ray-research-4": 1, "ray-research-6": 2}
    now_ms = int(time.time() * 1000)
    task = {"airflow_dag": "tiny_model", "airflow_task": "tiny_train_small", "step": "tiny/train_small"}
    head.has(JOB, "RUNNING", metadata=task, start_time=now_ms - 3 * HOUR_MS)
    head.has("notebook", "RUNNING", metadata={"user": "grace"}, start_time=now_ms - HOUR_MS // 3)
    for number in range(6):
        head.has(f"sweep-{number}", "PENDING", metadata={"user": "ada"}, start_time=now_ms - number * 60_000)
    wait = {"job_id": "01", "required_resources": {"TPU": 4.0}, "creation_time_ms": now_ms, "type": "NORMAL_TASK"}
    head.waiting = [wait, wait]
    head.drivers = {"01": JOB}
    return head
