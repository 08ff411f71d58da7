"""The process behind ``tradewind rehearse up --fleet``: clusters of a fleet, optionally an Airflow.

The plan in its folder names the clusters: a Ray cluster and a Cloud TPU each. Each cluster is a rehearsal cloud with
its own folder and control API. All share Cloud Storage, Secret Manager and the address of the Cloud TPU API, as at
Google. The control file exists once it is ready. On SIGTERM it stops itself and all that it started.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tradewind.rehearsal.cloud.cloud import GOOGLE_CONNECTION, RehearsalCloud, google_connection
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.control import ControlServer
from tradewind.rehearsal.cloud.control_client import CONTROL_FILE
from tradewind.rehearsal.cloud.daemon import airflow_settings, persistent_ray, serve, termination_event
from tradewind.rehearsal.cloud.fleet_plan import ClusterPlan, FleetPlan
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.processes import LocalStack, write_private
from tradewind.rehearsal.tpu.cloud import ZonedTpuCloud

CONNECTIONS_FILE: Final = "connections.json"
_CLUSTER_LABEL: Final = "ray-cluster-name"
_BACKEND: Final = "airflow.secrets.local_filesystem.LocalFilesystemBackend"


class RehearsalFleet:
    """The clusters of a plan; they run from ``start`` to ``stop``.

    Attributes:
        clouds: Cluster → its cloud.
        addresses: Addresses of this rehearsal's other parts, by name; the status reports them.
        airflow: The Airflow that runs beside it; the status reports its dead components.
    """

    def __init__(self, stack: LocalStack, plan: FleetPlan) -> None:
        self.stack = stack
        self.plan = plan
        self.addresses: dict[str, str] = {}
        self.airflow: LocalAirflow | None = None
        self.storage = LocalCloudStorage()
        self.secrets = LocalSecretManager()
        self._tokens = {cluster.secret: secrets.token_hex(32) for cluster in plan.clusters}
        self.clouds = {cluster.name: self._cloud(cluster) for cluster in plan.clusters}
        self.tpu = ZonedTpuCloud([cloud.tpu for cloud in self.clouds.values()])
        self._control = ControlServer({"start_airflow": self.start_airflow}, {"status": self.status})
        self._running = ExitStack()

    def start(self) -> None:
        """Start everything; returns when every slice is READY.

        Raises:
            RehearsalControlError: A slice did not start.
            LocalRayError: A head did not.
        """
        with ExitStack() as parts:
            for server in (self.storage, self.secrets, self.tpu, self._control):
                server.start()
                parts.callback(server.stop)
            for secret, token in self._tokens.items():
                self.secrets.put(secret, token)
            for bucket, region in {cluster.bucket: cluster.region for cluster in self.plan.clusters}.items():
                self.storage.buckets.create(bucket, region)
            with ThreadPoolExecutor() as pool:
                for cloud in self.clouds.values():
                    parts.callback(cloud.stop)
                list(pool.map(RehearsalCloud.start, self.clouds.values()))
                list(pool.map(self._create_slices, self.plan.clusters))
            write_private(self.stack.root / CONNECTIONS_FILE, json.dumps(self.connections(), indent=2))
            self._running = parts.pop_all()

    def stop(self) -> None:
        """Stop everything."""
        self._running.close()

    def write_control(self) -> None:
        """Write control files: one per cluster in its folder, and one for the status in this folder."""
        for name, cloud in self.clouds.items():
            cloud.write_control(self.stack.root / name)
        write_private(self.stack.root / CONTROL_FILE, self._control.access.to_json())

    def env(self) -> dict[str, str]:
        """Environment in which a process's client libraries find the whole fleet."""
        default = self.clouds[self.plan.default]
        return {
            **default.env(),
            **default.ray.access,
            "RAY_ADDRESS": default.ray.address,
            "TRADEWIND_TPU_ENDPOINT": self.tpu.url,
            "TRADEWIND_FLEET": self.plan.file,
        }

    def connections(self) -> dict[str, Any]:
        """The fields of Airflow's connections, by id."""
        clusters = {cluster.connection: self._connection(cluster) for cluster in self.plan.clusters}
        project = self.plan.default_cluster.project
        return {**clusters, GOOGLE_CONNECTION: google_connection(project, self.tpu.url)}

    def status(self) -> dict[str, Any]:
        """Return all contents, as the control API reports them."""
        backend = {"connections_file_path": str(self.stack.root / CONNECTIONS_FILE)}
        return {
            "clusters": {name: cloud.status() for name, cloud in self.clouds.items()},
            "addresses": self.addresses,
            "dead_in_airflow": self.airflow.dead_components() if self.airflow else {},
            "env": {
                **self.env(),
                "AIRFLOW__SECRETS__BACKEND": _BACKEND,
                "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps(backend),
            },
        }

    def start_airflow(self) -> list[str]:
        """Start Airflow's dead components again; return their names."""
        return self.airflow.start_dead_components() if self.airflow else []

    def _cloud(self, cluster: ClusterPlan) -> RehearsalCloud:
        stack = LocalStack(self.stack.root / cluster.name)
        return RehearsalCloud(
            stack,
            persistent_ray(stack, self._tokens[cluster.secret]),
            project=cluster.project,
            zone=cluster.zone,
            storage=self.storage,
            secrets=self.secrets,
        )

    def _create_slices(self, cluster: ClusterPlan) -> None:
        cloud, labels = self.clouds[cluster.name], {_CLUSTER_LABEL: cluster.name}
        with ThreadPoolExecutor() as pool:
            made = [pool.submit(cloud.create_slice, name, kind, labels=labels) for name, kind in cluster.slices.items()]
        for each in made:
            each.result()

    def _connection(self, cluster: ClusterPlan) -> Mapping[str, Any]:
        own = self.clouds[cluster.name].ray.connection
        return {**own, "extra": {**cluster.connection_extra, **own.get("extra", {})}}


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tradewind.rehearsal.cloud.fleet_daemon", description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--dags", type=Path)
    options = parser.parse_args(argv)
    plan = FleetPlan.of_folder(options.root)
    if plan is None:
        parser.error(f"there is no plan in {options.root}")
    with termination_event() as stopping:
        stack = LocalStack(options.root)
        with running(stack, plan, options.dags) as fleet:
            fleet.write_control()
            serve(stack, stopping)
    return 0


@contextmanager
def running(stack: LocalStack, plan: FleetPlan, dags: Path | None) -> Iterator[RehearsalFleet]:
    """Run the clusters of ``plan``; with ``dags``, also an Airflow that reads them."""
    fleet = RehearsalFleet(stack, plan)
    with ExitStack() as parts:
        parts.callback(fleet.stop)
        fleet.start()
        if dags is not None:
            default = plan.default_cluster
            settings = fleet.env() | airflow_settings(default.bucket, default.connection)
            known = {name: json.dumps(fields) for name, fields in fleet.connections().items()}
            airflow = LocalAirflow(stack, dags_folder=dags, connections=known, settings=settings)
            parts.callback(airflow.stop_components)
            airflow.start()
            fleet.airflow, fleet.addresses["airflow"] = airflow, airflow.url
        yield fleet


if __name__ == "__main__":
    sys.exit(main())
