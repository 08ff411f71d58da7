"""A Cloud TPU in a process of its own, full of nodes, and one pass of a repair over them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Any
from urllib.request import urlopen

from tradewind.cloud_tpu.repair_terms import RepairSettings, Scope
from tradewind.cloud_tpu.repair_turn import RepairTurn
from tradewind.cloud_tpu.repairing import SliceRepair
from tradewind.cloud_tpu.slice_records import SliceRecords
from tradewind.cloud_tpu.tpu_api import AT_ONCE, PAGE_SIZE, TpuApi
from tradewind.records.conditional import read_stored, write_if

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
    with _cloud(kind, count, latency_s) as url:
        api = TpuApi("rehearsal", "us-central2-b", endpoint=url)
        records = CountedRecords(f"memory://bench-repair/{time.time_ns()}", latency_s)
        ray = Ray(api, is_lost=kind != "healthy")
        settings = LIFTED if kind.startswith("dead") else RepairSettings()
        clock = Clock()
        turn = RepairTurn(f"{records.folder}/turn", records.counted(read_stored), records.counted(write_if))
        repair = SliceRepair(api, ray.hosts, Scope(labels=LABELS), records, settings, clock=clock.now, turn=turn)
        if kind.startswith("dead"):  # READY without hosts: only the time that it lasts tells that it is dead
            repair.run_once()
            clock.offset_s += 60.0
        before, records.requests = _calls(url), 0
        began, cpu, server_cpu = time.monotonic(), time.process_time(), _asked(url, "cpu")
        repair.run_once()
        took, cpu, server_cpu = time.monotonic() - began, time.process_time() - cpu, _asked(url, "cpu") - server_cpu
        calls, store_requests = _without(_calls(url), before), records.requests
        ray.is_lost = False
        passes = 0 if not calls.get("DeleteNode") else _passes_until_well(repair)
        return Pass(
            kind,
            took,
            count,
            **_counted(calls),
            store_requests=store_requests,
            client_cpu_s=cpu,
            server_cpu_s=server_cpu,
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


@contextmanager
def _cloud(kind: str, count: int, latency_s: float) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.repair_cloud", str(count), str(latency_s)]
    state = "PREEMPTED" if kind.startswith("PREEMPTED") else "READY"
    with subprocess.Popen([*command, state], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()  # which ends it


def _calls(url: str) -> dict[str, int]:
    return dict(_asked(url, "calls"))


def _asked(url: str, what: str) -> Any:
    with urlopen(f"{url}/{what}", timeout=60) as answer:
        return json.load(answer)


def _without(calls: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: number - before.get(name, 0) for name, number in calls.items() if name != "calls"}
