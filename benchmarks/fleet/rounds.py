"""One round of repair of a cluster in each of eight zones at once, as upkeep does.

The emulated Cloud TPU of all zones runs in its own process.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from typing import Any

from google.cloud.tpu_v2 import types

from benchmarks.processes import Usage, served
from tradewind.cloud_tpu.api import MAX_CONCURRENT_CALLS, PAGE_SIZE, TpuApi
from tradewind.cloud_tpu.repair.passes import SliceRepair
from tradewind.cloud_tpu.repair.records import RepairLock, SliceRecord, SliceRecords
from tradewind.cloud_tpu.repair.terms import RepairSettings, Scope
from tradewind.cloud_tpu.slice_types import slice_type
from tradewind.rehearsal.tpu.cloud import LocalTpuCloud, ZonedTpuCloud
from tradewind.rehearsal.tpu.state import NodeState
from tradewind.storage.swap import read_stored, write_if

PROJECT = "rehearsal"
ZONES = tuple(f"us-central{number}-b" for number in range(1, 9))
LABELS = {"cluster": "bench"}
LIFTED = RepairSettings(max_deletes_per_pass=10**6, max_deletes_per_hour=10**6)
LONG_S = 3600.0
"""Age of the nodes, and since when dead nodes are dead: longer than any grace period."""
HOSTLESS = "READY, without hosts"
WAYS = ("PREEMPTED", "TERMINATED", "STOPPED", "REPAIRING", HOSTLESS)
"""States of dead nodes. The first two are exempt from the limits; the others stay within those of one pass."""
KINDS = ("healthy", "5 dead in each zone", "all dead, limits lifted", "all PREEMPTED")
_WAYS_OF = dict(zip(KINDS, ((), WAYS, (HOSTLESS,), ("PREEMPTED",)), strict=True))


@dataclass(frozen=True)
class Round:
    """Cost and effect of one round.

    Attributes:
        kind: State of the nodes.
        seconds: Duration.
        nodes: Number of nodes.
        dead: Number of dead nodes.
        mended: Number of dead nodes that were replaced and are READY.
        touched: Number of other nodes that changed.
        deletions: Answered calls that delete a node.
        creations: Calls that create a node.
        looks: Number of reads of both lists of a zone.
        requests: All calls of the Cloud TPU API.
        store_requests: Requests to the store of the records.
        client_cpu_s: CPU seconds of this process, which repairs.
        server_cpu_s: CPU seconds of the Cloud TPU's process, on the same machine.
        peak_mb: Peak memory of this process.
    """

    kind: str
    seconds: float
    nodes: int
    dead: int
    mended: int
    touched: int
    deletions: int
    creations: int
    looks: int
    requests: int
    store_requests: int
    client_cpu_s: float
    server_cpu_s: float
    peak_mb: float

    @property
    def bound(self) -> int:
        """How many requests it may make: actions, the pages of both lists for each look, and the few read singly."""
        pages = max(1, ceil(self.nodes / len(ZONES) / PAGE_SIZE)) + 1
        singly = min(self.deletions, MAX_CONCURRENT_CALLS * len(ZONES))
        return self.deletions + self.creations + self.looks * pages + singly

    @property
    def is_exact(self) -> bool:
        """Whether exactly the right ones were touched."""
        return (self.mended, self.touched) == (self.dead, 0)


def measure(kind: str, per_zone: int, latency_s: float) -> dict[str, Any]:
    """The fields of a ``Round`` over so many nodes in each zone."""
    ways = _WAYS_OF[kind]
    with served(make_clouds, per_zone, latency_s, ways) as cloud:
        zones = [ClusterOfZone(zone, cloud.url, ways, per_zone, latency_s) for zone in ZONES]
        cloud.usage()
        began, cpu = time.monotonic(), time.process_time()
        with ThreadPoolExecutor(len(zones)) as threads:
            list(threads.map(ClusterOfZone.repair_once, zones))
        took, cpu = time.monotonic() - began, time.process_time() - cpu
        usage = cloud.usage()
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        mended, touched = (sum(counts) for counts in zip(*(zone.compared() for zone in zones), strict=True))
    return {
        "kind": kind, "seconds": took, "nodes": per_zone * len(zones), "dead": sum(len(zone.dead) for zone in zones),
        "mended": mended, "touched": touched, "store_requests": sum(zone.records.requests for zone in zones),
        "client_cpu_s": cpu, "server_cpu_s": usage.cpu_s, "peak_mb": peak_mb, **_counted(usage),
    }  # fmt: skip


def _counted(usage: Usage) -> dict[str, int]:
    calls = usage.requests
    return {
        "deletions": calls.get("DeleteNode", 0),
        "creations": calls.get("CreateNode", 0),
        "looks": calls.get("ListQueuedResources", 0),
        "requests": sum(calls.values()),
    }


class ClusterOfZone:
    """The only cluster of a zone, with the records of an earlier round.

    Attributes:
        dead: Dead slice → its state.
    """

    def __init__(self, zone: str, url: str, ways: Sequence[str], per_zone: int, latency_s: float) -> None:
        self._api = TpuApi(PROJECT, zone, endpoint=url)
        self._before = self._identities()
        self.dead = dead_ones(ways, per_zone)
        self._hosts = dict.fromkeys(self._before.keys() - self.dead.keys(), 1) or {"another": 1}
        self.records = CountedRecords(f"memory://bench-fleet/{zone}/{time.time_ns()}", latency_s)
        now = time.time()
        troubles = {name: "HOSTS" if way == HOSTLESS else way for name, way in self.dead.items()}
        notes = {name: SliceRecord(name).with_trouble(trouble, now) for name, trouble in troubles.items()}
        self.records.write_notes(notes)
        counted = self.records.counted
        lock = RepairLock(f"{self.records.folder}/turn", counted(read_stored), counted(write_if))
        self._repair = SliceRepair(
            self._api, lambda: self._hosts, Scope(labels=LABELS), self.records,
            LIFTED if ways == (HOSTLESS,) else RepairSettings(), clock=lambda: time.time() + LONG_S, lock=lock,
        )  # fmt: skip
        self.records.requests = 0

    def repair_once(self) -> None:
        """Run one pass over the zone."""
        self._repair.run_once()

    def compared(self) -> tuple[int, int]:
        """Return how many dead slices were replaced, and how many others changed."""
        now = self._identities()
        changed = {name for name in self._before.keys() | now.keys() if self._before.get(name) != now.get(name)}
        return len(changed & self.dead.keys() & now.keys()), len(changed - self.dead.keys())

    def _identities(self) -> dict[str, str]:
        """Of each slice: another once it is deleted, and made again."""
        return {node.name: node.identity for node in self._api.nodes()}


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


# ---- the Cloud TPU


def slice_name(number: int) -> str:
    """The name of a node of any zone."""
    return f"slice-{number:04}"


def dead_ones(ways: Sequence[str], per_zone: int) -> dict[str, str]:
    """Slice that is dead → in which way: one for each way, spread over the zone; if there is but one way, all."""
    if len(ways) == 1:
        return dict.fromkeys(map(slice_name, range(per_zone)), ways[0])
    return {slice_name(number * per_zone // len(ways)): way for number, way in enumerate(ways)}


def make_clouds(per_zone: int, latency_s: float, ways: Sequence[str]) -> ZonedTpuCloud:
    """Every zone with so many nodes, of which some are dead in these ways."""
    cloud = ZonedTpuCloud(make_zone(zone, per_zone, ways) for zone in ZONES)
    cloud.latency_s = latency_s
    return cloud


def make_zone(zone: str, per_zone: int, ways: Sequence[str]) -> LocalTpuCloud:
    """One zone of it."""
    cloud = LocalTpuCloud(project=PROJECT, zone=zone)
    kept = cloud.service.state
    asked = types.Node(
        accelerator_type="v4-8",
        runtime_version="tpu-ubuntu2204-base",
        labels=LABELS,
        metadata={"startup-script": "start ray " * 100},
        scheduling_config=types.SchedulingConfig(spot=True),
    )
    dead = dead_ones(ways, per_zone)
    for number in range(per_zone):
        name = slice_name(number)
        way = dead.get(name, HOSTLESS)
        held = kept.add_node(f"{kept.place.path}/nodes/{name}", asked, slice_type("v4-8"))
        held.node.state = NodeState["READY" if way == HOSTLESS else way]
    return cloud
