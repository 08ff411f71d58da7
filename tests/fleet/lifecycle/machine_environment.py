"""A fleet of simulated machines for heads and hosts, beside an Airflow that runs the shipped DAGs.

A job writes its traces to the ``/tmp`` of its machine and waits there for a gate. The tests read the traces and open
the gate from outside.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.fleet.fleets import REPOSITORY
from tests.fleet.lifecycle.fleet_environment import IMAGE_TAG, PROJECT, TOKEN, ZONE, write_key, write_local_fleet
from tests.fleet.sshd import find_sshd
from tests.support.clusters import CALM
from tests.support.google import LocalGoogle
from tests.support.machines import NetworkError, SimulatedMachines, missing_for_machines
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.fleet_file import load_fleet
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.airflow_api import AirflowApi
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import node_env

BUCKET = "my-bucket"
SECRET = f"projects/{PROJECT}/secrets/RAY_AUTH_TOKEN"
HEARTBEAT_S = 12.0
RUN_S = 300.0
_ENDPOINTS = ("COMPUTE", "TPU", "SECRET_MANAGER", "ARTIFACT_REGISTRY")
AT_WORK = "echo NAME >> /tmp/starts; echo NAME began; until [ -e /tmp/gate ]; do sleep 0.2; done; echo NAME ended"
"""The command of a job that writes a trace and waits for the gate of its machine."""
CHECKPOINTS = "work/pod-*/checkpoints/*/metadata.json"
"""Checkpoints of the training in ``dags``."""
_DAGS = Path(__file__).with_name("dags")


@dataclass
class Environment:
    """A fleet and its cloud.

    Attributes:
        variables: Environment variables by which a process finds the fleet.
    """

    folder: Path
    fleet: Path
    google: LocalGoogle
    storage: LocalCloudStorage
    machines: SimulatedMachines
    variables: dict[str, str]

    @property
    def cluster(self) -> FleetCluster:
        return load_fleet(self.fleet).cluster()

    def starts(self) -> Counter[str]:
        """Return name → number of starts under that name, on all machines."""
        files = (self.folder / "hosts").glob("*/starts")
        return Counter(line for file in files for line in file.read_text().split())

    def read(self, glob: str) -> list[bytes]:
        """Return the contents of the bucket's objects that match ``glob``, read inside the store."""
        objects = dict(self.storage.buckets.bucket(BUCKET).objects)
        return [one.data for name, one in objects.items() if fnmatch(name, glob)]

    def set_gate(self, *, is_open: bool) -> None:
        """Let all waiting jobs on the machines end, or later jobs wait again."""
        for machine in self.machines.running.values():
            gate = machine.folder / "gate"
            gate.touch() if is_open else gate.unlink(missing_ok=True)


@dataclass
class FleetAirflow:
    """An Airflow that knows the fleet only by its file."""

    airflow: LocalAirflow
    api: AirflowApi

    def start_run(self, dag_id: str, conf: dict[str, Any] | None = None) -> str:
        """Trigger a run and return its ID."""
        self.api.wait_for_dag(dag_id, 60.0)
        self.api.unpause(dag_id)
        return self.api.trigger(dag_id, conf)

    def states(self, dag_id: str, run_id: str) -> dict[str, tuple[str, int]]:
        """Return task ID → its state and its try number."""
        return {one["task_id"]: (one["state"], one["try_number"]) for one in self.api.task_instances(dag_id, run_id)}

    def finish(self, dag_id: str, run_id: str) -> dict[str, tuple[str, int]]:
        """Wait until the run ends, then return the same as ``states``."""
        self.api.wait_for_run(dag_id, run_id, RUN_S, on_poll=lambda run: self.airflow.raise_if_a_component_died())
        return self.states(dag_id, run_id)

    def has_released(self, dag_id: str, task_id: str) -> bool:
        """Return whether the scheduler knows that the task's process has ended.

        Airflow 3.3 fails a deferred task if its trigger fires, and the scheduler queues it again, before that
        (apache/airflow#67287). No user is that fast.
        """
        log = (self.airflow.stack.logs / "airflow-scheduler.log").read_text(errors="replace")
        return f"TaskInstance Finished: dag_id={dag_id}, task_id={task_id}," in log


@contextmanager
def running_fleet(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Environment]:
    """Run the fleet for the length of the block, and point this process's environment at it."""
    find_sshd()
    if (missing := missing_for_machines()) is not None:
        pytest.skip(missing)
    key = write_key(folder)
    storage = LocalCloudStorage()
    storage.start()
    env = {name: value for name, value in node_env(folder / "home").items() if name.startswith("RAY_")}
    machines = SimulatedMachines(
        folder / "hosts",
        user="ray",
        public_key=key.with_suffix(".pub").read_text(),
        env={**env, "RAY_AUTH_MODE": "token", "STORAGE_EMULATOR_HOST": storage.url},
    )
    google = LocalGoogle((PROJECT, ZONE), machines=machines.of_compute, hosts=machines.of_slices)
    google.secrets.put(SECRET, TOKEN)
    google.secrets.put(f"projects/{PROJECT}/secrets/hugging", "as it began")
    try:
        machines.network.start()
    except NetworkError as error:  # root in a container may lack the right to do this
        storage.stop()
        pytest.skip(str(error))
    google.start()
    storage.buckets.create(BUCKET)
    machines.serve(google, storage)
    google.registry.tags.add(IMAGE_TAG)
    fleet = write_local_fleet(folder / "infra", key, "    environment: {HF_TOKEN: hugging}\n")
    variables = {
        **{f"TRADEWIND_{name}_ENDPOINT": google.url for name in _ENDPOINTS},
        "STORAGE_EMULATOR_HOST": storage.url,
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_STATE_HOME": str(folder / "state"),
        "TRADEWIND_FLEET": str(fleet),
    }
    for name, value in variables.items():
        patch.setenv(name, value)
    fsspec.get_filesystem_class("gs").clear_instance_cache()
    try:
        yield Environment(folder, fleet, google, storage, machines, variables)
    finally:
        google.end_all()
        machines.network.stop()
        for server in (google, storage):
            server.stop()


@contextmanager
def running_airflow(env: Environment) -> Iterator[FleetAirflow]:
    """Run an Airflow with the shipped DAGs and the DAGs beside this file."""
    stack, dags = LocalStack(env.folder / "airflow"), env.folder / "dags"
    shutil.copytree(_DAGS, dags, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "dags" / "cluster_restart.py", dags)
    settings = {
        **CALM,
        **env.variables,
        "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
        "AIRFLOW__TRADEWIND__PREFIX": f"gs://{BUCKET}",
        "AIRFLOW__TRADEWIND__LEASE_HEARTBEAT_SECONDS": str(HEARTBEAT_S),
    }
    airflow = LocalAirflow(stack, dags_folder=dags, connections={}, settings=settings)
    try:
        airflow.start()
        yield FleetAirflow(airflow, AirflowApi(airflow.url, airflow.username, airflow.password))
    finally:
        stack.stop(grace_seconds=5.0)
