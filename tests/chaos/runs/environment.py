"""Test environment of drills: a store, a Ray cluster with separate hosts for steps, and Airflow."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import psutil
import pytest
from aiohttp import web

from tests.chaos.runs.postgres import LocalPostgres
from tests.support.clusters import CALM
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.airflow_api import AirflowApi
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay

DAGS = Path(__file__).parent / "dags"
BUCKET = "nights"
HEARTBEAT_S = 4.0
"""Heartbeat interval of leases."""
STALE_S = 3 * HEARTBEAT_S
HOSTS = 2
CONNECTION = "ray_default"
START_S = 300.0


class CuttableStorage(LocalCloudStorage):
    """A store that can disconnect a process: its requests get no answer."""

    def __init__(self) -> None:
        super().__init__()
        self.cut_off: int | None = None
        """Process ID of the disconnected process."""

    async def _serve(self, request: web.BaseRequest) -> web.Response:
        peer = request.transport.get_extra_info("peername") if request.transport else None
        if peer is not None and _is_of(self.cut_off, peer[1]):
            while self.cut_off is not None:
                await asyncio.sleep(0.1)
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=503)
        return await super()._serve(request)


def _is_of(pid: int | None, port: int) -> bool:
    try:
        connections = psutil.Process(pid).net_connections("tcp") if pid is not None else []
    except psutil.Error:
        return False
    return any(connection.laddr and connection.laddr.port == port for connection in connections)


@dataclass
class RunsEnvironment:
    """Parts of the running test environment; steps record in ``traces`` that they are alive."""

    stack: LocalStack
    storage: CuttableStorage
    ray: LocalRay
    traces: Path
    airflow: LocalAirflow
    staging: LocalAirflow | None
    """Second Airflow, which requires the same versions; the faults hit the first."""
    generation: int = 0
    """Number of replaced hosts."""
    waves: int = 0
    """Number of waves so far; each requires four versions."""

    @property
    def airflows(self) -> list[LocalAirflow]:
        return [self.airflow, *([self.staging] if self.staging is not None else [])]

    def api(self, airflow: LocalAirflow) -> AirflowApi:
        return AirflowApi(airflow.url, airflow.username, airflow.password)

    def hosts(self) -> list[tuple[str, LocalStack]]:
        """Return the hosts that run steps."""
        names = [f"cpu-{number}" for number in range(HOSTS + self.generation)]
        return [(name, self.ray.host_stack(name, 0)) for name in names if self.ray.has_host(name, 0)]

    def replace_host(self, name: str) -> None:
        """Kill a host with all its processes, and start a new one."""
        self.ray.kill_host(name, 0)
        new = f"cpu-{HOSTS + self.generation}"
        self.generation += 1
        self.ray.start_hosts(new, 1, timeout_seconds=START_S)

    def jobs(self) -> list[dict[str, Any]]:
        """Return every job in the head's job list."""
        return list(self.ray._get("/api/jobs/"))


@contextmanager
def running_environment(root: Path, on_postgres: bool) -> Iterator[RunsEnvironment]:
    """Start the test environment; on PostgreSQL with two schedulers, two triggerers and a second deployment."""
    stack = LocalStack(root)
    storage = CuttableStorage()
    storage.start()
    storage.buckets.create(BUCKET)
    env = {"STORAGE_EMULATOR_HOST": storage.url}
    postgres = LocalPostgres(stack) if on_postgres else None
    ray = LocalRay(stack, num_cpus=0, env={**env, "RAY_JOB_START_TIMEOUT_SECONDS": "3600"})
    traces = root / "traces"
    traces.mkdir()
    try:
        if postgres is not None:
            postgres.start()
        ray.start()
        for number in range(HOSTS):
            ray.start_hosts(f"cpu-{number}", 1, timeout_seconds=START_S)
        spares = ("scheduler-2", "triggerer-2") if on_postgres else ()
        database = None if postgres is None else postgres.url
        airflow = _airflow(stack, root, "production", ray, env, database=database, spares=spares)
        staging = _airflow(LocalStack(root / "second"), root, "staging", ray, env) if on_postgres else None
        environment = RunsEnvironment(stack, storage, ray, traces, airflow, staging)
        for deployment in environment.airflows:
            deployment.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STORAGE_EMULATOR_HOST", storage.url)
            fsspec.get_filesystem_class("gs").clear_instance_cache()
            yield environment
    finally:
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        storage.cut_off = None
        for process in stack.processes():  # a stopped process would not end
            with suppress(psutil.Error):
                process.resume()
        stack.stop(grace_seconds=3.0)
        storage.stop()
        if postgres is not None:
            postgres.remove()
    assert stack.processes() == []


def _airflow(
    stack: LocalStack, root: Path, deployment: str, ray: LocalRay, env: dict[str, str], **options: Any
) -> LocalAirflow:
    dags = root / f"dags-{deployment}"
    shutil.copytree(DAGS, dags, ignore=shutil.ignore_patterns("__pycache__"))
    return LocalAirflow(
        stack,
        dags_folder=dags,
        connections={CONNECTION: json.dumps(ray.connection)},
        settings={
            **CALM,
            **env,
            "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
            # Airflow detects killed components soon.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
            "AIRFLOW__TRADEWIND__PREFIX": f"gs://{BUCKET}",
            "AIRFLOW__TRADEWIND__DEPLOYMENT": deployment,
            "AIRFLOW__TRADEWIND__DEFAULT_CLUSTER": CONNECTION,
            "AIRFLOW__TRADEWIND__LEASE_HEARTBEAT_SECONDS": str(HEARTBEAT_S),
        },
        **options,
    )
