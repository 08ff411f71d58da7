"""Local Ray cluster: a head without TPUs, and one Ray node per host of each simulated TPU slice.

Every node has its own loopback address (``127.x.y.z``), so that two nodes cannot need the same port. Some Ray processes
listen at every address all the same, so every request must show the cluster's token, which only this user can read.
Every node is a ``LocalStack`` inside the cluster's: a host can die like a real one, with all its processes and no
others.

Linux only: elsewhere 127.0.0.1 is the only loopback address.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import os
import random
import secrets
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tradewind.cloud_tpu.slice_types import SIMULATED_VARIABLE, SLICE_NAME_LABEL, SliceType, slice_type
from tradewind.rehearsal.local.processes import LocalStack, free_port, kill_together, write_private
from tradewind.rehearsal.local.ray_start import DASHBOARD_MODULES

_INHERITED: Final = (
    "JAX_COMPILATION_CACHE_DIR", "JAX_DISABLE_MOST_OPTIMIZATIONS", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH",
    "PYTHONPYCACHEPREFIX", "PYTHONUNBUFFERED", "SSL_CERT_FILE", "TMPDIR", "TZ", "USER", "XLA_FLAGS", DASHBOARD_MODULES,
)  # fmt: skip
"""Variables of the caller that the processes of a node inherit; they get no others."""
_RAY_SETTINGS: Final = {
    # No usage reports.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Metrics have no reader here. Collecting them costs more CPU than all else in an idle cluster; without,
    # the dashboard, which still records its own, does half as much.
    "RAY_enable_metrics_collection": "0",
    "METRICS_RECORD_INTERVAL_S": "3600",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    # The default niceness is lower priority than every other process, so a test that waits for workers waits for all.
    "RAY_worker_niceness": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_COLOR_PREFIX": "0",
    "AUTOSCALER_METRIC_PORT": "-1",
    "DASHBOARD_METRIC_PORT": "-1",
}
_OBJECT_STORE_BYTES: Final = 100 * 1024 * 1024
_HOST_CPUS: Final = 2
_POLL_S: Final = 0.1
_STARTING_AT_ONCE: Final = 2
"""Nodes that ``start`` starts in parallel: Ray's 30 s are too short for many on a slow machine."""
RAY_START: Final = "tradewind.rehearsal.local.ray_start"
HostEnv = Callable[[int, str], Mapping[str, str]]
"""Environment of a host besides the cluster's, from its number in the slice and its address."""


def node_command(ip: str, temp_dir: Path, agent_port: int, options: Sequence[str]) -> list[str]:
    """Return the command that starts a node; ``options`` set its role (head or not) and its resources."""
    argv = [sys.executable, "-m", RAY_START, "start", *options]
    argv += [f"--node-ip-address={ip}", f"--temp-dir={temp_dir}", f"--dashboard-agent-listen-port={agent_port}"]
    argv += [f"--object-store-memory={_OBJECT_STORE_BYTES}", "--min-worker-port=0", "--max-worker-port=0"]
    return [*argv, "--include-log-monitor=false", "--disable-usage-stats", "--log-style=record", "--log-color=false"]


def host_options(gcs_address: str, num_gpus: int = 0, chips: int | None = None) -> list[str]:
    """Options of a node that joins the head at ``gcs_address``; Ray only counts its GPUs and TPU chips."""
    options = [f"--address={gcs_address}", f"--num-cpus={_HOST_CPUS}", f"--num-gpus={num_gpus}"]
    return options if chips is None else [*options, "--resources", json.dumps({"TPU": chips})]


def node_env(home: Path) -> dict[str, str]:
    """Return the environment of every node; create the folder ``home`` if it is missing."""
    home.mkdir(parents=True, exist_ok=True)
    inherited = {key: os.environ[key] for key in _INHERITED if key in os.environ}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**inherited, "PATH": path, "HOME": str(home), **_RAY_SETTINGS}


def head_memory(folder: Path) -> dict[str, str]:
    """Settings of a cluster whose head, killed and restarted, keeps its state, like the cloud clusters'.

    Its hosts wait for it as long as a start may take on a busy machine. By default they end themselves after a minute.
    """
    return {
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": str(folder),
        "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
    }


def tpu_host_env(slice_name: str, worker_id: int, shape: SliceType) -> dict[str, str]:
    """Environment of a TPU machine's processes, with the mark that this machine is simulated."""
    return {
        "TPU_NAME": slice_name,
        SIMULATED_VARIABLE: "1",
        "TPU_WORKER_ID": str(worker_id),
        "TPU_ACCELERATOR_TYPE": shape.name,
        **({"TPU_TOPOLOGY": shape.topology} if shape.topology else {}),
    }


def host_name(slice_name: str, worker_id: int) -> str:
    """Name of one host of a slice in logs and folders."""
    return f"{slice_name}.{worker_id}"


def loopback_addresses() -> Iterator[str]:
    """Yield addresses that very probably no other cluster on this machine uses."""
    first = ipaddress.IPv4Address("127.1.0.1") + 1024 * random.randrange(16_000)
    return (str(first + number) for number in itertools.count())


class LocalRayError(RuntimeError):
    """The local Ray cluster did not start."""


@dataclass(frozen=True)
class LocalSlice:
    """One simulated TPU slice; its name must be unique in the cluster."""

    name: str
    slice_type: str


@dataclass(frozen=True)
class LocalNode:
    """One live Ray node, as the cluster reports it."""

    ip: str
    labels: Mapping[str, str]
    resources: Mapping[str, float]


@dataclass(frozen=True)
class LocalRayStatus:
    """Status from the cluster's own API."""

    nodes: tuple[LocalNode, ...]

    @property
    def slices(self) -> dict[str, int]:
        """Slice name -> hosts alive."""
        return dict(Counter(name for node in self.nodes if (name := node.labels.get(SLICE_NAME_LABEL))))


class LocalRay:
    """One cluster, from ``start`` to ``stop``; hosts can be added and removed in between.

    Args:
        token: The token of every node and request; default: a new random one. Empty: every client that reaches a
            port of the cluster may run code on it.
    """

    def __init__(
        self,
        stack: LocalStack,
        *,
        num_cpus: int,
        slices: Sequence[LocalSlice] = (),
        dashboard_port: int | None = None,
        name: str = "ray",
        env: Mapping[str, str] | None = None,
        token: str | None = None,
    ) -> None:
        self.stack = LocalStack(stack.root / name)
        self.num_cpus = num_cpus
        self.slices = tuple(slices)
        self.token = secrets.token_hex(32) if token is None else token
        self._env = dict(env or {})
        self._addresses = loopback_addresses()
        self._head_ip = next(self._addresses)
        self._dashboard_port = dashboard_port or free_port()
        self._gcs_port = free_port()
        self._agent_ports: dict[str, int] = {}
        self._temp: Path | None = None
        self._starting: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.RLock()
        """Held while hosts start or stop, because several threads may add and remove slices."""
        self._ips: dict[str, str] = {}
        """Addresses of the required nodes. None is used twice, so a dead node is not taken for a new one."""

    @property
    def address(self) -> str:
        """Address of the Jobs API."""
        return f"http://127.0.0.1:{self._dashboard_port}"

    @property
    def token_file(self) -> Path:
        """File with the token while the cluster runs; mode 0600."""
        return self.stack.root / "token"

    @property
    def access(self) -> dict[str, str]:
        """Environment that gives Ray's clients of this user access."""
        if not self.token:
            return {"RAY_AUTH_MODE": "disabled"}  # do not use a token in the user's home
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token_file)}

    @property
    def connection(self) -> dict[str, Any]:
        """Fields of an Airflow connection to it; the token stays in its file."""
        extra = {"extra": {"token_file": str(self.token_file)}} if self.token else {}
        return {"conn_type": "ray", "host": self.address, **extra}

    @property
    def gcs_address(self) -> str:
        return f"{self._head_ip}:{self._gcs_port}"

    @property
    def is_running(self) -> bool:
        """Whether it is started and not stopped."""
        return "head" in self._starting

    def add_env(self, env: Mapping[str, str]) -> None:
        """Add variables to the environment of every node started from now on."""
        self._env |= env

    def start(self, timeout_seconds: float = 300.0) -> None:
        """Start everything; return once the Jobs API answers and every node is registered."""
        deadline = time.monotonic() + timeout_seconds
        if self.token:
            write_private(self.token_file, self.token)
        while True:
            try:
                return self._start_all(deadline)
            except BaseException as error:
                self.stop(grace_seconds=1.0)
                if not _may_come_up_later(error, deadline):
                    raise

    def stop(self, grace_seconds: float = 1.0) -> None:
        """Stop every process of the cluster, its jobs included, and remove its temporary files."""
        self.stack.stop(grace_seconds)
        for process in self._starting.values():
            process.wait()
        self._starting.clear()
        self._ips.clear()
        self._temp = None  # the stack removed it

    def kill_head(self) -> int:
        """Kill the head with all its processes, jobs included; return the number of killed processes.

        With ``head_memory`` in ``env``, its successor restores its state.
        """
        process = self._starting.pop("head")
        del self._ips["head"]
        killed = kill_together([LocalStack(self.stack.root / "head")])
        process.wait()
        # Surviving hosts have the head in their command lines; with this file, Ray would take them for a running head.
        (self._temp_dir("head") / "ray_current_cluster").unlink(missing_ok=True)
        return killed

    def start_head(self, timeout_seconds: float = 300.0) -> None:
        """Restart the killed head at its old addresses; return once it can run jobs."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            self._start_head()
            try:
                self._wait("the head's node", lambda: self._starting["head"].poll() == 0, deadline)
                return self._wait("the Jobs API", self._jobs_api_answers, deadline)
            except LocalRayError as error:
                if not _may_come_up_later(error, deadline):
                    raise
                self.kill_head()

    def start_slice(self, new: LocalSlice, timeout_seconds: float = 300.0, env_of: HostEnv | None = None) -> None:
        """Add a slice to the running cluster; return once all of its hosts are registered.

        Raises:
            LocalRayError: A host did not start, or the slice was stopped meanwhile.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            names = self._launch_slice(new, env_of)
            try:
                return self._wait(f"slice {new.name}", partial(self._is_registered, new.name, names), deadline, names)
            except LocalRayError as error:
                if not _may_come_up_later(error, deadline):
                    raise
                self.kill_slice(new.name)

    def start_hosts(
        self,
        name: str,
        count: int,
        *,
        num_gpus: int = 0,
        timeout_seconds: float = 300.0,
        env: Mapping[str, str] = MappingProxyType({SIMULATED_VARIABLE: "1"}),
    ) -> None:
        """Add hosts without TPUs; Ray only counts their GPUs. ``kill_host`` stops one."""
        options = host_options(self.gcs_address, num_gpus)
        names = [host_name(name, number) for number in range(count)]
        with self._lock:
            for number, node_name in enumerate(names):
                self._start_node(node_name, self.host_stack(name, number), next(self._addresses), options, env)
        deadline = time.monotonic() + timeout_seconds
        self._wait(f"the hosts {name}", self._all_registered, deadline, names)

    def kill_host(self, slice_name: str, worker_id: int) -> int:
        """Kill a host with all its processes, as a preemption does; return the number of killed processes."""
        return self._forget([host_name(slice_name, worker_id)])

    def kill_slice(self, slice_name: str) -> int:
        """Kill every host of the slice at once."""
        with self._lock:
            return self._forget([name for name in self._starting if name.rpartition(".")[0] == slice_name])

    def has_host(self, slice_name: str, worker_id: int) -> bool:
        """Whether the host is started and not killed."""
        return host_name(slice_name, worker_id) in self._starting

    def host_stack(self, slice_name: str, worker_id: int) -> LocalStack:
        """Return the processes of one simulated host: its Ray node, and the node's processes."""
        return LocalStack(self.stack.root / "hosts" / host_name(slice_name, worker_id))

    def status(self) -> LocalRayStatus:
        """Return the live nodes. Raises ``OSError`` while the API does not answer."""
        query = "detail=1&limit=1000&filter_keys=state&filter_predicates=%3D&filter_values=ALIVE"
        found = self._get(f"/api/v0/nodes?{query}")["data"]["result"]["result"]
        return LocalRayStatus(
            tuple(LocalNode(node["node_ip"], node.get("labels") or {}, node["resources_total"]) for node in found)
        )

    # ---- starting nodes

    def _start_all(self, deadline: float) -> None:
        self._start_head()
        # A host that starts earlier gives up when a slow head does not register in time.
        self._wait("the head's node", lambda: self._starting["head"].poll() == 0, deadline)
        for new in self.slices:
            for worker_id in range(slice_type(new.slice_type).hosts):
                self._wait("room for another node", self._may_start_another, deadline)
                self._launch_host(new, worker_id, None)
        self._wait("the Jobs API", self._jobs_api_answers, deadline)
        self._wait("all nodes to register", self._all_registered, deadline)

    def _may_start_another(self) -> bool:
        return sum(process.poll() is None for process in self._starting.values()) < _STARTING_AT_ONCE

    def _start_head(self) -> None:
        self._start_node(
            "head",
            LocalStack(self.stack.root / "head"),
            self._head_ip,
            ["--head", f"--port={self._gcs_port}", f"--num-cpus={self.num_cpus}", "--num-gpus=0"]
            + ["--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={self._dashboard_port}"]
            + [f"--ray-client-server-port={free_port()}"],
            {},
        )

    def _launch_slice(self, new: LocalSlice, env_of: HostEnv | None = None) -> list[str]:
        """Start the hosts of a slice; return their names."""
        with self._lock:
            return [self._launch_host(new, worker_id, env_of) for worker_id in range(slice_type(new.slice_type).hosts)]

    def _launch_host(self, new: LocalSlice, worker_id: int, env_of: HostEnv | None) -> str:
        shape, ip, name = slice_type(new.slice_type), next(self._addresses), host_name(new.name, worker_id)
        env = {**tpu_host_env(new.name, worker_id, shape), **(env_of(worker_id, ip) if env_of else {})}
        options = host_options(self.gcs_address, chips=shape.chips_per_host)
        self._start_node(name, self.host_stack(new.name, worker_id), ip, options, env)
        return name

    def _start_node(
        self, name: str, stack: LocalStack, ip: str, options: Sequence[str], env: Mapping[str, str]
    ) -> None:
        agent_port = self._agent_ports.setdefault(name, free_port())  # a restarted agent serves its old jobs
        temp_dir = self._temp_dir(name)
        if name != "head":
            self._share_logs(temp_dir)
        argv = node_command(ip, temp_dir, agent_port, options)
        self._ips[name] = ip
        self._starting[name] = stack.start(
            "ray", argv, {**node_env(self.stack.root / "home"), **self.access, **self._env, **env}
        )

    def _temp_dir(self, name: str) -> Path:
        """Return the node's folder, with a short path: Ray's socket paths below may have 107 characters.

        A restarted head finds its previous logs there.
        """
        if self._temp is None:
            self._temp = self.stack.scratch()
            self._head_temp = Path(tempfile.mkdtemp(dir=self._temp, prefix=""))
        return self._head_temp if name == "head" else Path(tempfile.mkdtemp(dir=self._temp, prefix=""))

    def _share_logs(self, temp_dir: Path) -> None:
        """Let a host log to the head's folder: on one machine, the agents of all nodes read jobs' logs there."""
        session = (self._head_temp / "session_latest").resolve()
        (temp_dir / session.name).mkdir()
        (temp_dir / session.name / "logs").symlink_to(session / "logs")

    def _forget(self, names: Sequence[str]) -> int:
        with self._lock:
            processes = [self._starting.pop(name) for name in names]
            for name in names:
                del self._ips[name]
            killed = kill_together([LocalStack(self.stack.root / "hosts" / name) for name in names])
        for process in processes:
            process.wait()
        return killed

    # ---- waiting

    def _wait(
        self, what: str, is_true: Callable[[], bool], deadline: float, nodes: Sequence[str] | None = None
    ) -> None:
        """Wait until ``nodes`` (default: all) satisfy ``what``."""
        while True:
            for name, process in list(self._starting.items()):
                if process.poll() and (nodes is None or name in nodes):
                    raise LocalRayError(
                        f"Ray node {name} ended with code {process.returncode} while the local cluster waited for"
                        f" {what}; its log ends with:\n{self._log_tail(name)}"
                    )
            try:
                if is_true():
                    return
            except (OSError, ValueError, KeyError, TypeError):
                pass  # still starting
            if time.monotonic() > deadline:
                tail = self._log_tail("head")
                raise LocalRayError(f"The local cluster waited too long for {what}; the head's log ends with:\n{tail}")
            time.sleep(_POLL_S)

    def _jobs_api_answers(self) -> bool:
        return isinstance(self._get("/api/jobs/"), list)

    def _is_registered(self, slice_name: str, hosts: Sequence[str]) -> bool:
        if not all(name in self._ips for name in hosts):
            raise LocalRayError(f"Slice {slice_name} was ended while it started.")
        return {self._ips[name] for name in hosts} <= {node.ip for node in self.status().nodes}

    def _all_registered(self) -> bool:
        return set(self._ips.values()) <= {node.ip for node in self.status().nodes}

    def _get(self, path: str) -> Any:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy cannot reach this loopback
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(self.address + path, headers=headers)
        with opener.open(request, timeout=5.0) as answer:
            return json.load(answer)

    def _log_tail(self, name: str, lines: int = 30) -> str:
        folder = self.stack.root / "head" if name == "head" else self.stack.root / "hosts" / name
        try:
            text = (LocalStack(folder).logs / "ray.log").read_text(errors="replace")
        except OSError as problem:
            return str(problem)
        return "\n".join(text.splitlines()[-lines:])


def _may_come_up_later(error: BaseException, deadline: float) -> bool:
    """Whether a start was only slow: Ray allows a node 30 s and its agent 15 s.

    The services of a head then run without a node, until its supervisor restarts it.
    """
    return "node timed out during startup" in str(error) and time.monotonic() < deadline
