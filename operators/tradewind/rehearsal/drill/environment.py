"""Test environment of a drill: a rehearsal cloud with slices, an Airflow that uses it, and repair.

It exists in one folder, and ends with the ``with`` block in every case.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

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
"""Heartbeat interval of leases: a dead driver costs three times as long."""
_HEAD_CPUS: Final = 4
_REPAIR_EVERY_S: Final = 1.0
_LOOK_EVERY_S: Final = 0.2
_SLICES_TIMEOUT_S: Final = 300.0
_PATIENCE: Final = RepairSettings(
    transition_grace_s=60.0,
    start_grace_s=10.0,
    host_grace_s=10.0,  # a restarted head needs some seconds to hear of its hosts
    # Slices lose hosts while Google reports READY, which does not prove a loss. A drill of many faults kills
    # more than the default of 20 in an hour, and would wait for the rest of the hour.
    max_deletes_per_hour=1000,
    stock_out_pause_s=1.0,
    max_stock_out_pause_s=4.0,
)


class DrillEnvironmentError(RuntimeError):
    """The drill's cloud did not get its slices."""


DrillHouseError = DrillEnvironmentError


class DrillEnvironment:
    """The running parts.

    Attributes:
        stack: All of their processes.
        ray: The cluster.
        cloud: The emulated Google Cloud that provides the slices.
        required: Required slices: name → type.
    """

    def __init__(self, root: Path, slice_types: Sequence[str]) -> None:
        self.stack = LocalStack(root)
        memory = head_memory(self.stack.root / "gcs")
        # The run under faults reuses the baseline run's compilations: half of the cost of a tiny training.
        cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(self.stack.root / "compilations"))
        self.ray = LocalRay(self.stack, num_cpus=_HEAD_CPUS, env={**memory, "JAX_COMPILATION_CACHE_DIR": cache})
        self.cloud = RehearsalCloud(self.stack, self.ray)
        self.required = {f"slice-{chr(ord('a') + number)}": name for number, name in enumerate(slice_types)}

    @property
    def prefix(self) -> str:
        """Prefix of the outputs of all runs."""
        return f"gs://{BUCKET}"

    def start(self) -> None:
        """Start the cloud and its cluster, without slices yet."""
        self.cloud.start()
        self.cloud.storage.buckets.create(BUCKET, self.cloud.zone.rpartition("-")[0])

    def await_slices(self) -> None:
        """Wait until exactly the required slices exist; the repair creates them.

        Raises:
            DrillEnvironmentError: The slices are not ready in time.
        """
        deadline = time.monotonic() + _SLICES_TIMEOUT_S
        while leaked := self.leaked_slices():
            if time.monotonic() > deadline:
                why = ", ".join(leaked)
                raise DrillEnvironmentError(f"The slices are not ready after {_SLICES_TIMEOUT_S:.0f} s: {why}.")
            time.sleep(_LOOK_EVERY_S)

    @contextmanager
    def repaired(self) -> Iterator[None]:
        """Recreate dead slices meanwhile, as the recovery DAG does."""
        done = threading.Event()
        thread = threading.Thread(target=self._repair, args=(done,), daemon=True, name="drill-repair")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def leaked_slices(self) -> list[str]:
        """Return superfluous nodes and queued resources, and slices that are missing or not READY."""
        status = self.cloud.status()
        present = {each["name"]: each for each in status["slices"]}
        unwanted = [f"slice {name}" for name in present.keys() - self.required.keys()]
        queued = [f"queued resource {resource['name']}" for resource in status["queued_resources"]]
        bad = [f"slice {name} does not work" for name in self.required if not _works(present.get(name))]
        return sorted([*unwanted, *queued, *bad])

    def _repair(self, done: threading.Event) -> None:
        api = TpuApi(self.cloud.project, self.cloud.zone, endpoint=self.cloud.url, poll_s=0.2, retry_timeout_s=5.0)
        runtime = {"runtimeVersion": "rehearsal"}
        bodies = {name: {"acceleratorType": kind, **runtime} for name, kind in self.required.items()}
        records = SliceRecords(str(self.stack.root / "slice-records"))
        repair = SliceRepair(api, self._registered, Scope(expected=bodies), records, _PATIENCE)
        while not done.wait(_REPAIR_EVERY_S):
            try:
                repair.run_once()
            except TpuApiError:
                continue  # the next pass retries

    def _registered(self) -> Mapping[str, int] | None:
        try:
            return self.ray.status().slices
        except (OSError, ValueError, KeyError, TypeError):  # the head is down or starting
            return None


@contextmanager
def running_environment(root: Path, slice_types: Sequence[str]) -> Iterator[DrillEnvironment]:
    """Run an environment with its slices, also for this process's Google clients; clean up afterwards."""
    environment = DrillEnvironment(root, slice_types)
    try:
        environment.start()
        with _environment(environment.cloud.env()), environment.repaired():
            environment.await_slices()
            yield environment
    finally:
        try:
            environment.cloud.stop()
        finally:
            environment.stack.stop(grace_seconds=3.0)


@contextmanager
def running_airflow(environment: DrillEnvironment, dags_folder: Path) -> Iterator[LocalAirflow]:
    """Run an Airflow beside the environment, with this DAGs folder."""
    airflow = LocalAirflow(
        environment.stack,
        dags_folder=dags_folder,
        connections=connections(environment.ray, environment.cloud.project),
        settings={
            **environment.cloud.env(),
            "AIRFLOW__TRADEWIND__PREFIX": environment.prefix,
            "AIRFLOW__TRADEWIND__DEFAULT_CLUSTER": RAY_CONNECTION,
            "AIRFLOW__TRADEWIND__LEASE_HEARTBEAT_SECONDS": str(HEARTBEAT_S),
            "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
            # No user waits for a drill's tasks or edits its DAG: leave the CPUs to the training.
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
    """Set variables in this process, and drop file systems created before."""
    try:
        with in_environment(values):
            _forget_file_systems()
            yield
    finally:
        _forget_file_systems()


def _forget_file_systems() -> None:
    import fsspec

    fsspec.get_filesystem_class("gs").clear_instance_cache()


def _works(status: Mapping[str, Any] | None) -> bool:
    return status is not None and status["state"] == "READY" and all(host["in_ray"] for host in status["hosts"])
