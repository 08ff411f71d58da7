"""Cost of a plan in which every step is finished, compared with the minimum that must be read for it."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.harness import Goal, at_most
from benchmarks.outputs import BUCKET_PREFIX, LATENCY_S, WITNESS, cloud_of, experiment_of, finished_files, write
from benchmarks.processes import in_fresh_process
from benchmarks.report import Table, megabytes, ratio, seconds
from tradewind.records.lease import lease_path

SHAPE = "lattice"
LOCAL, CLOUD = "local", "gs://"
MOST_SECONDS = {1_000: 2.0, 10_000: 15.0}
"""For a plan of so many steps on gs://."""
MOST_MB = 500.0
AT_ONCE = 256
"""Connections of the bound's client."""


@dataclass(frozen=True)
class Planned:
    """One plan in its own process.

    Attributes:
        resolve: Seconds of computing the versions.
        decide: Seconds of reading the records and deciding; the store's client is loaded in it, too.
        tell: Seconds of writing the table and the XComs.
        cpu: Seconds of processor time of all three.
        bound: Seconds of reading the same leases and checking the same sentinel files, and nothing else.
        peak_mb: Peak memory of the process.
        before_mb: Its peak before planning, with Airflow loaded.
        requests: Number of requests by kind; empty for a folder.
    """

    store: str
    steps: int
    resolve: float
    decide: float
    tell: float
    cpu: float
    bound: float
    peak_mb: float
    before_mb: float
    xcom_mb: float
    requests: Mapping[str, int]

    @property
    def seconds(self) -> float:
        return self.resolve + self.decide + self.tell


def bench_plans(quick: bool) -> Iterator[Table | Goal]:
    """Measure plans of each size on each store; yield the one with the median time."""
    counts, repeats = ((100,), 1) if quick else ((1_000, 10_000), 3)
    plans = []
    for store, stored in ((LOCAL, _folder_of), (CLOUD, _bucket_of)):
        for count in counts:
            with stored(count) as where:
                found = sorted((_measure(store, count, where) for _ in range(repeats)), key=lambda one: one.seconds)
            plans.append(found[len(found) // 2])
    yield plans_table(plans)
    yield from plan_goals(plans)


def plans_table(found: Sequence[Planned]) -> Table:
    """Return a row for each size and store."""
    table = Table(
        f"plans: all steps finished ({SHAPE}; gs:// on loopback answers after {LATENCY_S * 1000:.0f} ms)",
        ("plan", "time", "resolve", "decide", "tell", "CPU", "bound", "÷ bound", "peak", "before", "XCom", "requests"),
        notes=(
            "In a fresh process with Airflow loaded. decide: reads all records, with the store's client loaded first.",
            "tell: table and XComs. CPU: of the plan alone, the store is another process.",
            "bound: a bare client in its own process reads each lease and checks each sentinel file.",
            "peak and before: the process's memory at the end, and when it began to plan.",
        ),
    )
    for one in found:
        table.add(
            f"{one.store} {one.steps:,}",
            *map(seconds, (one.seconds, one.resolve, one.decide, one.tell, one.cpu, one.bound)),
            ratio(one.seconds, one.bound),
            *map(megabytes, (one.peak_mb, one.before_mb)),
            f"{one.xcom_mb:.1f} MB",
            ", ".join(f"{count:,} {kind}" for kind, count in sorted(one.requests.items())) or "-",
        )
    return table


def plan_goals(plans: Sequence[Planned]) -> Iterator[Goal]:
    """Yield the limits of a plan: seconds and listings on gs://, and memory."""
    for one in plans:
        name = f"plan of {one.steps:,} steps, {one.store}"
        if one.store == CLOUD:
            if (most := MOST_SECONDS.get(one.steps)) is not None:
                yield at_most(name, one.seconds, most)
            yield at_most(f"listings of a {name}", one.requests.get("list", 0), most_listings(one.steps), str)
        yield at_most(f"memory of a {name}", one.peak_mb, MOST_MB, megabytes)


def most_listings(steps: int) -> int:
    """Return the maximum number of listings of a plan, at any number of objects."""
    return steps // 100 + 20


@dataclass(frozen=True)
class _Store:
    """Yield the prefix of the outputs, the environment for it, and a counter of requests."""

    prefix: str
    environment: Mapping[str, str]
    requests: Callable[[], Mapping[str, int]]


@contextmanager
def _folder_of(count: int) -> Iterator[_Store]:
    with tempfile.TemporaryDirectory(prefix="tradewind-bench-") as folder:
        write(finished_files(experiment_of(SHAPE, count, folder)))
        yield _Store(folder, {}, dict)


@contextmanager
def _bucket_of(count: int) -> Iterator[_Store]:
    with cloud_of(SHAPE, count) as cloud:
        yield _Store(BUCKET_PREFIX, {"STORAGE_EMULATOR_HOST": cloud.url}, lambda: cloud.usage().requests)


def _measure(store: str, count: int, where: _Store) -> Planned:
    bound = in_fresh_process(read_bare, where.prefix, SHAPE, count, env=where.environment)
    where.requests()
    planned = in_fresh_process(plan_once, where.prefix, SHAPE, count, env=where.environment)
    return Planned(store, count, bound=bound, **planned, requests=where.requests())


def plan_once(prefix: str, shape: str, count: int) -> dict[str, float]:
    """Return the seconds of each part of planning a graph with finished outputs, and memory in MB."""
    from airflow.sdk.bases.xcom import BaseXCom

    from benchmarks.graphs import SHAPES, steps_of
    from tradewind.operators.plan import PlanOperator
    from tradewind.plans.plan import Decision, chunks
    from tradewind.plans.table import plan_table
    from tradewind.steps.run_values import RunValues
    from tradewind.tasks.context import ExperimentSettings

    steps = {step.name.replace("/", "_"): step for step in steps_of(SHAPES[shape](count))}
    operator = PlanOperator(task_id="plan", steps=steps, wanted=list(steps), settings=ExperimentSettings(prefix))
    before, cpu, times = peak_mb(), time.process_time(), [time.perf_counter()]
    placed = operator.settings.resolve(list(steps.values()), RunValues())
    times.append(time.perf_counter())
    plan = operator._plan(placed, {"params": {}})
    times.append(time.perf_counter())
    table = plan_table(plan)
    texts = [json.dumps(BaseXCom.serialize_value(value)) for value in (plan.to_json(), *chunks(plan).values())]
    times.append(time.perf_counter())
    cpu = time.process_time() - cpu
    assert len(plan.decided(Decision.REUSE)) == count and f"{count} REUSE" in table
    parts = {name: times[i + 1] - times[i] for i, name in enumerate(("resolve", "decide", "tell"))}
    return parts | {"cpu": cpu, "peak_mb": peak_mb(), "before_mb": before, "xcom_mb": sum(map(len, texts)) / 1e6}


def read_bare(prefix: str, shape: str, count: int) -> float:
    """Return the seconds of the minimal reads: every lease, and a check of every sentinel file."""
    paths = [step.output_path for step in experiment_of(shape, count, prefix).steps]
    started = time.perf_counter()
    if prefix.startswith("gs://"):
        asyncio.run(_read_cloud(os.environ["STORAGE_EMULATOR_HOST"], paths))
    else:
        for path in paths:
            json.loads(Path(lease_path(path)).read_bytes())
            os.stat(os.path.join(path, WITNESS))
    return time.perf_counter() - started


async def _read_cloud(server: str, paths: Sequence[str]) -> None:
    from aiohttp import ClientSession, TCPConnector

    async with ClientSession(connector=TCPConnector(limit=AT_ONCE), raise_for_status=True) as session:

        async def read(path: str, **query: str) -> Any:
            bucket, _, name = path.removeprefix("gs://").partition("/")
            url = f"{server}/storage/v1/b/{bucket}/o/{quote(name, safe='')}"
            async with session.get(url, params=query) as answer:
                return json.loads(await answer.read())

        await asyncio.gather(*(read(lease_path(path), alt="media") for path in paths))
        await asyncio.gather(*(read(f"{path}/{WITNESS}") for path in paths))


def peak_mb() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
