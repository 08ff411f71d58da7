"""What a drill runs on: a rehearsal cloud with its slices, an Airflow whose cluster it is, and somebody who repairs.

All of it lives in one folder and dies with the ``with`` block, whatever ended that.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tradewind.cloud_tpu.api import TpuApi
from tradewind.cloud_tpu.errors import TpuApiError
from tradewind.cloud_tpu.repair.passes import SliceRepair
from tradewind.cloud_tpu.repair.records import SliceRecords
from tradewind.cloud_tpu.repair.terms import RepairSettings, Scope
from tradewind.rehearsal.cloud.cloud import RAY_CONNECTION, RehearsalCloud, connections
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay, head_memory
from tradewind.runtime.driver.secrets import in_environment

BUCKET: Final = "drill-outputs"
HEARTBEAT_S: Final = 6.0
"""Of leases: what a dead driver costs is three times as long."""
_HEAD_CPUS: Final = 4
_REPAIR_EVERY_S: Final = 1.0
_LOOK_EVERY_S: Final = 0.2
_SLICES_TIMEOUT_S: Final = 300.0
_PATIENCE: Final = RepairSettings(
    transition_grace_s=60.0,
    start_grace_s=10.0,
    host_grace_s=10.0,  # a head that comes back takes some seconds to hear of its hosts
    # Its own slices lose hosts while Google calls them READY, which no certain death is: a drill of many faults kills
    # more of them in an hour than the default of 20, and would stand still for the rest of it.
    max_deletes_per_hour=1000,
    stock_out_pause_s=1.0,
    max_stock_out_pause_s=4.0,
)


class DrillHouseError(RuntimeError):
    """The cloud of a drill did not get its slices."""


DrillEnvironmentError = DrillHouseError


class DrillEnvironment:
    """The parts, while they run.

    Attributes:
        stack: Every process of them.
        ray: The cluster.
        cloud: The Google Cloud that the cluster's slices come from.
        wanted: Name → type of the slices that should be there.
    """

    def __init__(self, root: Path, slice_types: Sequence[str]) -> None:
        self.stack = LocalStack(root)
        memory = head_memory(self.stack.root / "gcs")
        # The run that is disturbed compiles what the other one has compiled: half of what a tiny training computes.
        kept = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(self.stack.root / "compilations"))
        self.ray = LocalRay(self.stack, num_cpus=_HEAD_CPUS, env={**memory, "JAX_COMPILATION_CACHE_DIR": kept})
        self.cloud = RehearsalCloud(self.stack, self.ray)
        self.wanted = {f"slice-{chr(ord('a') + number)}": name for number, name in enumerate(slice_types)}

    @property
    def prefix(self) -> str:
        """Below it are the outputs of all runs."""
        return f"gs://{BUCKET}"

    def start(self) -> None:
        """Start the cloud and its cluster, still without slices."""
        self.cloud.start()
        self.cloud.storage.buckets.create(BUCKET, self.cloud.zone.rpartition("-")[0])

    def await_slices(self) -> None:
        """Wait until all slices are there, and no others: whoever repairs makes them.

        Raises:
            DrillHouseError: They are not.
        """
        deadline = time.monotonic() + _SLICES_TIMEOUT_S
        while leaked := self.leaked_slices():
            if time.monotonic() > deadline:
                raise DrillHouseError(f"The slices are not as they should be: {', '.join(leaked)}.")
            time.sleep(_LOOK_EVERY_S)

    @contextmanager
    def repaired(self) -> Iterator[None]:
        """Slices that die meanwhile are made again, as the recovery DAG does it."""
        done = threading.Event()
        thread = threading.Thread(target=self._repair, args=(done,), daemon=True, name="drill-repair")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def leaked_slices(self) -> list[str]:
        """Nodes and queued resources that should not be there, and slices that are missing or not READY."""
        status = self.cloud.status()
        found = {known["name"]: known for known in status["slices"]}
        unwanted = [f"slice {name}" for name in found.keys() - self.wanted.keys()]
        queued = [f"queued resource {resource['name']}" for resource in status["queued_resources"]]
        bad = [f"slice {name} does not work" for name in self.wanted if not _works(found.get(name))]
        return sorted([*unwanted, *queued, *bad])

    def _repair(self, done: threading.Event) -> None:
        api = TpuApi(self.cloud.project, self.cloud.zone, endpoint=self.cloud.url, poll_s=0.2, patience_s=5.0)
        bodies = {name: {"acceleratorType": kind, "runtimeVersion": "rehearsal"} for name, kind in self.wanted.items()}
        records = SliceRecords(str(self.stack.root / "slice-records"))
        repair = SliceRepair(api, self._registered, Scope(expected=bodies), records, _PATIENCE)
        while not done.wait(_REPAIR_EVERY_S):
            try:
                repair.run_once()
            except TpuApiError:
                continue  # the next pass sees what this one could not

    def _registered(self) -> Mapping[str, int] | None:
        try:
            return self.ray.status().slices
        except (OSError, ValueError, KeyError, TypeError):  # the head is down, or half up
            return None


@contextmanager
def running_environment(root: Path, slice_types: Sequence[str]) -> Iterator[DrillEnvironment]:
    """A house with its slices up, which this process's own Google clients find, too; nothing is left of it after."""
    house = DrillEnvironment(root, slice_types)
    try:
        house.start()
        with _environment(house.cloud.env()), house.repaired():
            house.await_slices()
            yield house
    finally:
        try:
            house.cloud.stop()
        finally:
            house.stack.stop(grace_seconds=3.0)


@contextmanager
def running_airflow(house: DrillEnvironment, dags_folder: Path) -> Iterator[LocalAirflow]:
    """An Airflow beside the house, which reads this DAGs folder."""
    airflow = LocalAirflow(
        house.stack,
        dags_folder=dags_folder,
        connections=connections(house.ray, house.cloud.project),
        settings={
            **house.cloud.env(),
            "AIRFLOW__TRADEWIND__PREFIX": house.prefix,
            "AIRFLOW__TRADEWIND__DEFAULT_CLUSTER": RAY_CONNECTION,
            "AIRFLOW__TRADEWIND__LEASE_HEARTBEAT_SECONDS": str(HEARTBEAT_S),
            "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
            # Nobody waits for a task of a drill, or edits its DAG: the CPUs are for the training.
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.4",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
        },
    )
    try:
        airflow.start()
        yield airflow
    finally:
        airflow.stop_components()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """These variables in this process; file systems that were made before did not know them."""
    try:
        with in_environment(values):
            _forget_file_systems()
            yield
    finally:
        _forget_file_systems()


def _forget_file_systems() -> None:
    import fsspec

    fsspec.get_filesystem_class("gs").clear_instance_cache()


def _works(told: Mapping[str, object] | None) -> bool:
    hosts = told.get("hosts") if told else None
    return bool(told and told["state"] == "READY" and isinstance(hosts, list) and all(host["in_ray"] for host in hosts))
