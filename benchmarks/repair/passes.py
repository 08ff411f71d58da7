"""One pass of a repair over a Cloud TPU full of nodes, which serves in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from google.cloud.tpu_v2 import types

from benchmarks.processes import served
from tradewind.cloud_tpu.api import AT_ONCE, PAGE_SIZE, TpuApi
from tradewind.cloud_tpu.repair.passes import SliceRepair
from tradewind.cloud_tpu.repair.records import SliceRecords
from tradewind.cloud_tpu.repair.terms import RepairSettings, Scope
from tradewind.cloud_tpu.repair.turn import RepairTurn
from tradewind.cloud_tpu.slice_types import slice_type
from tradewind.rehearsal.tpu.cloud import LocalTpuCloud
from tradewind.rehearsal.tpu.state import NodeState
from tradewind.storage.swap import read_stored, write_if

LABELS = {"cluster": "bench"}
LIFTED = RepairSettings(max_deletes_per_pass=10**6, max_deletes_per_hour=10**6, host_grace_s=0.0, start_grace_s=0.0)
KINDS = ("healthy", "troubled", "dead, limits lifted", "PREEMPTED, default limits")


@dataclass(frozen=True)
class Pass:
    """One pass: what it took, and what it did.

    Attributes:
        kind: What the nodes were like.
        seconds: How long it took.
        nodes: How many nodes there were.
        deletions: Calls that delete a node, that were answered.
        creations: Calls that create one.
        lists: Calls that list something, one for each page.
        looks: How often both lists were read.
        requests: Calls of the Cloud TPU API, of whatever kind.
        store_requests: How often the store of the records was asked.
        client_cpu_s: How many CPU seconds this process used, which repairs.
        server_cpu_s: And the one of the Cloud TPU, on the same machine.
        passes: How many passes more it takes until one finds all slices at work; 0 where there is nothing to do.
    """

    kind: str
    seconds: float
    nodes: int
    deletions: int
    creations: int
    lists: int
    looks: int
    requests: int
    store_requests: int
    client_cpu_s: float
    server_cpu_s: float
    passes: int


def bound(one: Pass) -> int:
    """How many requests it may make: its actions, the pages of both lists for each look, and the few read singly."""
    pages = max(1, ceil(one.nodes / PAGE_SIZE)) + 1
    return one.deletions + one.creations + one.looks * pages + min(one.deletions, AT_ONCE)


def measure(kind: str, count: int, latency_s: float) -> Pass:
    """One pass over ``count`` nodes of this kind, and the passes after it until all is well."""
    with served(make_cloud, count, latency_s, "PREEMPTED" if kind.startswith("PREEMPTED") else "READY") as cloud:
        api = TpuApi("rehearsal", "us-central2-b", endpoint=cloud.url)
        records = CountedRecords(f"memory://bench-repair/{time.time_ns()}", latency_s)
        ray = Ray(api, is_lost=kind != "healthy")
        settings = LIFTED if kind.startswith("dead") else RepairSettings()
        clock = Clock()
        turn = RepairTurn(f"{records.folder}/turn", records.counted(read_stored), records.counted(write_if))
        repair = SliceRepair(api, ray.hosts, Scope(labels=LABELS), records, settings, clock=clock.now, turn=turn)
        if kind.startswith("dead"):  # READY without hosts: only the time that it lasts tells that it is dead
            repair.run_once()
            clock.offset_s += 60.0
        cloud.usage()
        records.requests = 0
        began, cpu = time.monotonic(), time.process_time()
        repair.run_once()
        took, cpu, of_cloud = time.monotonic() - began, time.process_time() - cpu, cloud.usage()
        store_requests = records.requests
        ray.is_lost = False
        passes = 0 if not of_cloud.requests.get("DeleteNode") else _passes_until_well(repair)
        return Pass(
            kind,
            took,
            count,
            **_counted(of_cloud.requests),
            store_requests=store_requests,
            client_cpu_s=cpu,
            server_cpu_s=of_cloud.cpu_s,
            passes=passes,
        )


def _counted(calls: Mapping[str, int]) -> dict[str, int]:
    return {
        "deletions": calls.get("DeleteNode", 0),
        "creations": calls.get("CreateNode", 0),
        "lists": calls.get("ListNodes", 0) + calls.get("ListQueuedResources", 0),
        "looks": calls.get("ListQueuedResources", 0),
        "requests": sum(calls.values()),
    }


def _passes_until_well(repair: SliceRepair) -> int:
    for number in range(1, 20):
        if repair.run_once().is_well:
            return number
    return 0


class Clock:
    """The time, as far ahead as is wanted."""

    offset_s = 0.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time() + self.offset_s


class Ray:
    """What Ray says: every host is there, or almost every slice has lost its host."""

    def __init__(self, api: TpuApi, is_lost: bool) -> None:
        self.is_lost = is_lost
        self._names = [node.name for node in api.nodes()]

    def hosts(self) -> dict[str, int]:
        """One host for each slice that works."""
        return {"another": 1} if self.is_lost else dict.fromkeys(self._names, 1)


class CountedRecords(SliceRecords):
    """Records in a store whose every answer takes its time."""

    def __init__(self, folder: str, latency_s: float) -> None:
        super().__init__(folder)
        self.requests = 0
        self._latency_s = latency_s
        store = self._fs
        names = ("ls", "cat_file", "pipe_file", "rm_file")
        methods = {name: staticmethod(self.counted(getattr(store, name))) for name in names}
        self._fs = type("SlowStore", (), {**methods, "invalidate_cache": staticmethod(store.invalidate_cache)})()

    def counted(self, request: Callable[..., Any]) -> Callable[..., Any]:
        """The same request, which takes its time and is counted."""

        def call(*args: Any, **options: Any) -> Any:
            self.requests += 1
            time.sleep(self._latency_s)
            return request(*args, **options)

        return call


def make_cloud(count: int, latency_s: float, state: str) -> LocalTpuCloud:
    """The Cloud TPU of the rehearsal with so many nodes, all in that state."""
    cloud = LocalTpuCloud()
    cloud.latency_s = latency_s
    kept = cloud.service.state
    asked = types.Node(
        accelerator_type="v4-8",
        runtime_version="tpu-ubuntu2204-base",
        labels=LABELS,
        metadata={"startup-script": "start ray " * 100},
        scheduling_config=types.SchedulingConfig(spot=True),
    )
    for number in range(count):
        held = kept.add_node(f"{kept.place.path}/nodes/slice-{number:04}", asked, slice_type("v4-8"))
        held.node.state = NodeState[state]
    return cloud
