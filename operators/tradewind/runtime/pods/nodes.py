"""Ray's nodes, and which of them answer: Ray may count a dead node as alive for many seconds.

A node that is lost without notice stays in Ray's table until enough health checks have failed. A connection attempt to
its raylet shows the loss at once, so the pod checks that too.
"""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.cloud_tpu.slice_types import POD_TYPE_LABEL, SLICE_NAME_LABEL, TOPOLOGY_LABEL, WORKER_ID_LABEL

CONNECT_S: Final = 1.0
_POLL_S: Final = 0.5
_MAX_CONNECTIONS: Final = 32
START_S: Final = 180.0
"""How long a host's worker may take to start in an existing environment, or to start a process."""
_RAY_SETUP_S: Final = 600.0
_NEEDS_NO_SETUP: Final = frozenset(
    {"env_vars", "config", "worker_process_setup_hook", "_ray_commit", "_inject_current_ray"}
)
_AUTOSCALER_STATUS: Final = b"__autoscaling_status"
_MIRRORED: Final = "node_"
"""Prefix of the type of a node that the autoscaler did not create."""


@dataclass(frozen=True)
class Stall:
    """How long a process may be without heartbeat or step before the pod counts as stalled."""

    frozen_s: float = 60.0
    """Without a heartbeat."""
    stall_s: float = 1200.0
    """Without a new step, once one is expected."""


def start_limit_s(environment: Mapping[str, Any]) -> float:
    """Return how long a host's first answer may take, while Ray sets up this runtime environment for its worker.

    It exceeds Ray's own limit for the setup, so that Ray reports the reason first.
    """
    if not set(environment) - _NEEDS_NO_SETUP:
        return START_S
    config = environment.get("config") or {}
    setup_s = float(config.get("setup_timeout_seconds", _RAY_SETUP_S))
    return START_S + (setup_s if setup_s >= 0 else math.inf)


@dataclass(frozen=True)
class Node:
    """One node that Ray counts as alive."""

    id: str
    ip: str
    port: int
    """The port of its raylet."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    resources: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def pod_type(self) -> str | None:
        return self.labels.get(POD_TYPE_LABEL)

    @property
    def slice_name(self) -> str | None:
        return self.labels.get(SLICE_NAME_LABEL)

    @property
    def chips(self) -> float | None:
        """The TPU chips of this host."""
        return self.resources.get("TPU")

    @property
    def slice_hosts(self) -> int | None:
        """How many hosts like this one a slice of its topology has; None if unknown."""
        topology = self.labels.get(TOPOLOGY_LABEL, "")
        sides = [int(side) for side in topology.split("x") if side.isdecimal()]
        return math.ceil(math.prod(sides) / self.chips) if sides and self.chips else None

    @property
    def worker_id(self) -> str | None:
        return self.labels.get(WORKER_ID_LABEL)


def live_nodes(*, with_dead: bool = False) -> list[Node]:
    """Return the nodes that Ray counts as alive, and ``with_dead`` also the dead ones that it remembers."""
    import ray

    return [
        Node(
            row["NodeID"],
            row["NodeManagerAddress"],
            row["NodeManagerPort"],
            row.get("Labels") or {},
            row.get("Resources") or {},
        )
        for row in ray.nodes()
        if with_dead or row.get("Alive")
    ]


def is_autoscaled() -> bool:
    """Whether Ray's autoscaler adds nodes: without a configuration it only mirrors the existing ones."""
    from ray.experimental.internal_kv import _internal_kv_get

    try:
        report = json.loads(_internal_kv_get(_AUTOSCALER_STATUS) or b"{}").get("autoscaler_report") or {}
    except (ValueError, AttributeError):
        return False
    return any(not kind.startswith(_MIRRORED) for kind in report.get("active_nodes") or {})


def free_resources() -> dict[str, dict[str, float]]:
    """Return node id -> free resources."""
    from ray._private import state

    return dict(state.available_resources_per_node())


def draining_nodes() -> dict[str, float | None]:
    """Return node id -> the epoch second at which the drained node goes, or None if unknown."""
    from ray._private import state

    return {node: at / 1000 if at else None for node, at in state.state.get_draining_nodes().items()}


def is_listening(ip: str, port: int, timeout_s: float = CONNECT_S) -> bool:
    """Whether a process listens there."""
    try:
        with socket.create_connection((ip, port), timeout=timeout_s):
            return True
    except OSError:
        return False


def unresponsive_nodes(nodes: Iterable[Node], timeout_s: float = CONNECT_S) -> set[str]:
    """Return the ids of the nodes whose raylet does not answer."""
    checked = list(nodes)
    if not checked:
        return set()
    with ThreadPoolExecutor(min(len(checked), _MAX_CONNECTIONS)) as pool:
        answered = pool.map(lambda node: is_listening(node.ip, node.port, timeout_s), checked)
        return {node.id for node, alive in zip(checked, answered, strict=True) if not alive}


class NodeWatch:
    """Ray's own view of the nodes, read twice a second in a thread, because Ray's head may answer slowly."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: frozenset[str] | None = None
        self._draining: dict[str, float | None] = {}
        self._stopped = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="node-watch").start()

    def dead(self, node_ids: Iterable[str]) -> set[str]:
        """Return those of the nodes that Ray counts as dead; none before its first answer."""
        with self._lock:
            return set() if self._alive is None else {node_id for node_id in node_ids if node_id not in self._alive}

    def draining(self, node_ids: Iterable[str]) -> dict[str, float | None]:
        """Return those of the nodes that are being drained, with their deadlines in epoch seconds."""
        with self._lock:
            return {node_id: self._draining[node_id] for node_id in node_ids if node_id in self._draining}

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(_POLL_S):
            try:
                alive, draining = frozenset(node.id for node in live_nodes()), draining_nodes()
            except Exception:  # an outage of Ray's head says nothing about the hosts
                continue
            with self._lock:
                self._alive, self._draining = alive, draining
