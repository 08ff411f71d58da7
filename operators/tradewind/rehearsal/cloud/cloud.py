"""Local Google Cloud with one Ray cluster: Cloud TPU, Cloud Storage, Secret Manager, host metadata.

A node or queued resource created through the TPU API consists of real Ray nodes of that cluster. Preempting it kills
all of their processes with SIGKILL. The methods here control what happens to a slice; the control API serves them too.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil
from google.cloud.tpu_v2 import types

from tradewind.cloud_tpu.endpoints import ENDPOINT_VARIABLES
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.control import ControlServer
from tradewind.rehearsal.cloud.control_client import CONTROL_FILE, RehearsalControl, RehearsalControlError
from tradewind.rehearsal.cloud.metadata_server import TOKEN, MetadataServer
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.processes import LocalStack, write_private
from tradewind.rehearsal.local.ray import LocalRay, host_name
from tradewind.rehearsal.tpu.cloud import LocalTpuCloud
from tradewind.rehearsal.tpu.grpc import TpuGrpcServer
from tradewind.rehearsal.tpu.hosts import RayHosts
from tradewind.rehearsal.tpu.requests import RefusedCallError
from tradewind.rehearsal.tpu.state import NodeEntry, NodeState

RAY_CONNECTION: Final = "ray_default"
GOOGLE_CONNECTION: Final = "google_cloud_default"
RUNTIME_VERSION: Final = "tpu-ubuntu2204-base"
_PROCESS_OF_A_POD: Final = "TRADEWIND_PROCESS_ID"
_GUARD: Final = "process_guard"


def client_env(project: str, *, apis: str, storage: str, secrets: str) -> dict[str, str]:
    """Return the environment that directs every Google client to the rehearsal of ``project``.

    APIs that it lacks, such as that of virtual machines, also point to ``apis``, which refuses them. Otherwise a user
    with credentials would look, with the fleet file of a rehearsal, for the real heads.

    Args:
        apis: The URL of Cloud TPU, and of the missing APIs.
        storage: The URL of Cloud Storage.
        secrets: The URL of Secret Manager.
    """
    return {
        **dict.fromkeys(ENDPOINT_VARIABLES.values(), apis),
        "STORAGE_EMULATOR_HOST": storage,
        "TENSORSTORE_GCS_HTTP_URL": storage,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": TOKEN,
        "GOOGLE_CLOUD_PROJECT": project,
        ENDPOINT_VARIABLES["secretmanager"]: secrets,
    }


class RehearsalCloud:
    """One project in one zone, whose slices join the cluster ``ray``; it runs from ``start`` to ``stop``.

    Args:
        storage: Shared Cloud Storage that the caller starts and stops; by default its own.
        secrets: The same for Secret Manager.

    Attributes:
        storage: Cloud Storage; a bucket has to be created before it is used.
        secrets: Secret Manager.
        tpu: Cloud TPU over REST, and its state.
        addresses: Addresses of this rehearsal's other parts, by name; the status reports them.
        airflow: The Airflow that runs beside it; the status reports its dead components.
    """

    def __init__(
        self,
        stack: LocalStack,
        ray: LocalRay,
        *,
        project: str = "rehearsal",
        zone: str = "us-central2-b",
        storage: LocalCloudStorage | None = None,
        secrets: LocalSecretManager | None = None,
    ) -> None:
        self.stack = stack
        self.ray = ray
        self.project = project
        self.zone = zone
        self.addresses: dict[str, str] = {}
        self.airflow: LocalAirflow | None = None
        self.storage = storage or LocalCloudStorage()
        self.secrets = secrets or LocalSecretManager()
        self._metadata = MetadataServer(project, zone)
        self._hosts = RayHosts(ray, self._metadata, self.env)
        self.tpu = LocalTpuCloud(self._hosts, project=project, zone=zone)
        self._state = self.tpu.service.state
        self._grpc = TpuGrpcServer(self.tpu.service)
        own = [self.storage] * (storage is None) + [self.secrets] * (secrets is None)
        self._control = ControlServer(self._actions(), {"status": self.status, "requests": self.requests})
        self._servers: list[Any] = [*own, self._metadata, self.tpu, self._grpc, self._control]

    # ---- start and stop

    def start(self) -> None:
        """Start all servers, and the Ray cluster if it is stopped; its nodes find the servers by ``env``."""
        for server in self._servers:
            server.start()
        self.ray.add_env(self.env())
        try:
            if not self.ray.is_running:
                self.ray.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything, the Ray cluster included."""
        self.tpu.service.lives.end_all()
        self.ray.stop()
        for server in reversed(self._servers):
            server.stop()

    # ---- addresses

    @property
    def url(self) -> str:
        """URL of Cloud TPU over REST."""
        return self.tpu.url

    @property
    def grpc_address(self) -> str:
        """Address of Cloud TPU over gRPC, without encryption."""
        return self._grpc.address

    @property
    def parent(self) -> str:
        """``projects/P/locations/Z``."""
        return self._state.place.path

    @property
    def control(self) -> RehearsalControl:
        """URL and token of the control API."""
        return self._control.access

    def write_control(self, folder: Path) -> None:
        """Write URL and token of the control API to ``folder``, readable only by its owner."""
        write_private(folder / CONTROL_FILE, self.control.to_json())

    def env(self) -> dict[str, str]:
        """Environment in which a process's client libraries find this cloud, and never Google's own."""
        return client_env(self.project, apis=self.tpu.url, storage=self.storage.url, secrets=self.secrets.endpoint)

    # ---- contents

    def create_slice(
        self,
        name: str,
        slice_type: str,
        *,
        spot: bool = True,
        reserved: bool = False,
        labels: dict[str, str] | None = None,
        timeout_s: float = 240.0,
    ) -> None:
        """Create a node through the TPU API's own service, and wait until it is READY.

        Raises:
            RehearsalControlError: The node is refused, or not READY in time.
        """
        node = types.Node(accelerator_type=slice_type, runtime_version=RUNTIME_VERSION, labels=labels or {})
        node.scheduling_config = types.SchedulingConfig(spot=spot and not reserved, reserved=reserved)
        request = types.CreateNodeRequest(parent=self.parent, node_id=name, node=node)
        try:
            operation = self.tpu.service.call("CreateNode", request, "control")
        except RefusedCallError as error:
            raise RehearsalControlError(f"Slice {name} is refused: {error}.") from None
        operations = self._state.operations
        with self._state.changed:
            self._state.changed.wait_for(lambda: operations[operation.name].done, timeout=timeout_s)
            ended = operations[operation.name]
        if not ended.done or ended.HasField("error"):
            why = ended.error.message if ended.done else f"it is not READY after {timeout_s:.0f} s"
            raise RehearsalControlError(f"Slice {name} did not start: {why}.")

    def wait_until(self, name: str, state: str | None, timeout_s: float = 60.0) -> None:
        """Wait until a node is in this state, or with None until it is gone.

        Raises:
            RehearsalControlError: The node does not reach the state in time.
        """
        full = f"{self.parent}/nodes/{name}"

        def present() -> str | None:
            entry = self._state.nodes.get(full)
            return None if entry is None else str(entry.node.state.name)

        with self._state.changed:
            if not self._state.changed.wait_for(lambda: present() == state, timeout=timeout_s):
                raise RehearsalControlError(f"Slice {name} is {present()}, not {state}, after {timeout_s:.0f} s.")

    def status(self) -> dict[str, Any]:
        """Return all contents, as the control API reports them."""
        with self._state.changed:
            nodes = list(self._state.nodes.values())
            queued = [
                {"name": _id(resource.name), "state": resource.state.state.name}
                for resource in self._state.queued.values()
            ]
        alive = self._alive_addresses()
        return {
            "project": self.project,
            "zone": self.zone,
            "addresses": {"ray": self.ray.address, "gcs": self.ray.gcs_address, "tpu_grpc": self.grpc_address}
            | self.addresses,
            "connections": connections(self.ray, self.project, self.tpu.url),
            "env": self.env(),
            "ray_env": self.ray.access | {"RAY_ADDRESS": self.ray.address},
            "slices": [_slice_status(entry, alive) for entry in nodes],
            "queued_resources": queued,
            "stock_out": self._state.supply.is_out,
            "dead_in_airflow": self.airflow.dead_components() if self.airflow else {},
        }

    def start_airflow(self) -> list[str]:
        """Start Airflow's dead components again; return their names."""
        return self.airflow.start_dead_components() if self.airflow else []

    def requests(self) -> list[dict[str, Any]]:
        """Return every call to the TPU API: at, transport, call, about, answer."""
        return self.tpu.service.log()

    # ---- faults

    def preempt(self, name: str, notice_s: float | None = None) -> None:
        """Preempt a slice: its metadata announces it, and after ``notice_s`` all its processes are killed.

        Without notice they are dead on return. The node stays PREEMPTED until a client deletes it.
        """
        entry = self._ready(name)
        lives = self.tpu.service.lives
        if notice_s is None:
            lives.preempt(entry, 0.0)
        else:
            lives.begin(lives.preempt, entry, notice_s)

    def kill_host(self, name: str, worker: int) -> int:
        """Kill one host while the node still reports READY; return the number of killed processes."""
        self._check_host(name, worker)
        killed = self.ray.kill_host(name, worker)
        self._metadata.drop_host(host_name(name, worker))
        return killed

    def hang_host(self, name: str, worker: int) -> int:
        """Send SIGSTOP to the pod's processes on this host; return their number."""
        return self._signal(name, worker, signal.SIGSTOP)

    def resume_host(self, name: str, worker: int) -> int:
        """Send SIGCONT to the same processes."""
        return self._signal(name, worker, signal.SIGCONT)

    def repair(self, name: str, repair_s: float = 5.0) -> None:
        """Simulate Google's repair: the hosts vanish; after ``repair_s`` the slice is READY with new ones."""
        entry = self._ready(name)
        with self._state.changed:
            self._state.set_state(entry, NodeState.REPAIRING)
        self.tpu.service.lives.begin(self.tpu.service.lives.repair, entry, repair_s)

    def stock_out(self, on: bool) -> None:
        """Set whether the zone has no capacity."""
        with self._state.changed:
            self._state.supply.is_out = on
            self._state.changed.notify_all()

    def slow_create(self, seconds: float) -> None:
        """Delay every creation from now on by this time."""
        with self._state.changed:
            self._state.supply.slow_s = seconds

    def set_capacity(self, slice_type: str, count: int | None) -> None:
        """Limit how many slices of this type can exist at once; None: no limit."""
        with self._state.changed:
            _set_limit(self._state.supply.capacity, slice_type, count)
            self._state.changed.notify_all()

    def set_quota(self, slice_type: str, count: int | None) -> None:
        """Limit the nodes of this type, dead ones included; more get 429. None: no limit."""
        with self._state.changed:
            _set_limit(self._state.supply.quota, slice_type, count)

    def flaky(self, count: int, status: int = 503) -> None:
        """Answer the next ``count`` calls to the TPU API with this HTTP status, or its gRPC counterpart."""
        self.tpu.service.fail_next(count, status)

    # ---- helpers

    def _actions(self) -> dict[str, Callable[..., Any]]:
        return {
            action.__name__: action
            for action in (
                self.create_slice, self.preempt, self.kill_host, self.hang_host, self.resume_host, self.repair,
                self.stock_out, self.slow_create, self.set_capacity, self.set_quota, self.flaky,
                self.start_airflow,
            )
        }  # fmt: skip

    def _held(self, name: str) -> NodeEntry:
        with self._state.changed:
            entry = self._state.nodes.get(f"{self.parent}/nodes/{name}")
            known = ", ".join(sorted(node.id for node in self._state.nodes.values()))
        if entry is None:
            raise RehearsalControlError(f"There is no slice {name!r}; there are: {known or 'none'}.")
        return entry

    def _ready(self, name: str) -> NodeEntry:
        entry = self._held(name)
        if entry.node.state != NodeState.READY:
            raise RehearsalControlError(f"Slice {name} is {entry.node.state.name}, not READY.")
        return entry

    def _check_host(self, name: str, worker: int) -> None:
        hosts = self._ready(name).shape.hosts
        if not 0 <= worker < hosts:
            raise RehearsalControlError(f"Slice {name} has no host {worker}: it has {hosts}, from 0.")
        if not self.ray.has_host(name, worker):
            raise RehearsalControlError(f"Host {worker} of slice {name} no longer runs.")

    def _signal(self, name: str, worker: int, number: signal.Signals) -> int:
        self._check_host(name, worker)
        processes = [process for process in self.ray.host_stack(name, worker).processes() if _is_of_a_pod(process)]
        if not processes:
            raise RehearsalControlError(f"No process of a pod runs on host {worker} of slice {name}.")
        for process in processes:
            os.kill(process.pid, number)
        return len(processes)

    def _alive_addresses(self) -> set[str]:
        try:
            return {node.ip for node in self.ray.status().nodes}
        except (OSError, ValueError, KeyError, TypeError):  # the head is down
            return set()


def connections(ray: LocalRay, project: str, tpu_endpoint: str | None = None) -> dict[str, str]:
    """Return the Airflow connections to a rehearsal, by id; its processes get the endpoint by environment."""
    return {
        RAY_CONNECTION: json.dumps(ray.connection),
        GOOGLE_CONNECTION: json.dumps(google_connection(project, tpu_endpoint)),
    }


def google_connection(project: str, tpu_endpoint: str | None = None) -> dict[str, Any]:
    """Return the fields of Airflow's Google connection for a rehearsal."""
    extra = {"is_anonymous": True, "project": project, **({"tpu_endpoint": tpu_endpoint} if tpu_endpoint else {})}
    return {"conn_type": "google_cloud_platform", "extra": extra}


def _slice_status(entry: NodeEntry, alive: set[str]) -> dict[str, Any]:
    node = entry.node
    return {
        "name": entry.id,
        "type": entry.shape.name,
        "state": node.state.name,
        "health": node.health.name,
        "queued_resource": _id(node.queued_resource),
        "reserved": node.scheduling_config.reserved,
        "hosts": [
            {"worker": worker, "address": endpoint.ip_address, "in_ray": endpoint.ip_address in alive}
            for worker, endpoint in enumerate(node.network_endpoints)
        ],
    }


def _id(name: str) -> str:
    return name.rpartition("/")[2]


def _set_limit(limits: dict[str, int], slice_type: str, count: int | None) -> None:
    if count is None:
        limits.pop(slice_type, None)
    else:
        limits[slice_type] = count


def _is_of_a_pod(process: psutil.Process) -> bool:
    """Whether a pod started it; its process guard does not count, because it must survive to observe."""
    try:
        return _PROCESS_OF_A_POD in process.environ() and not any(_GUARD in word for word in process.cmdline())
    except psutil.Error:
        return False
