"""``python -m benchmarks.plans_once WAY PREFIX SHAPE COUNT``: one plan in a fresh process, as its task makes it.

The ways are ``plan``, and ``bound``: the least that must be read, every lease and a look at every witness, by a bare
client. Prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.plans_store import WITNESS, experiment_of
from tradewind.records.leases import lease_path

AT_ONCE = 256
"""Connections of the bound's client."""


def plan_once(prefix: str, shape: str, count: int) -> dict[str, float]:
    """Seconds of each part of planning a graph whose outputs are all finished, and memory in MB."""
    from airflow.sdk.bases.xcom import BaseXCom

    from benchmarks.graphs import SHAPES, steps_of
    from tradewind.operators.plan import PlanOperator
    from tradewind.operators.run_context import ExperimentSettings
    from tradewind.plans.chunks import chunks
    from tradewind.plans.plan import Decision
    from tradewind.plans.table import plan_table
    from tradewind.steps.run_values import RunValues

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


def read_bare(prefix: str, shape: str, count: int) -> dict[str, float]:
    """Seconds of reading the least that tells that all is finished."""
    paths = [step.output_path for step in experiment_of(shape, count, prefix).steps]
    started = time.perf_counter()
    if prefix.startswith("gs://"):
        asyncio.run(_read_cloud(os.environ["STORAGE_EMULATOR_HOST"], paths))
    else:
        for path in paths:
            json.loads(Path(lease_path(path)).read_bytes())
            os.stat(os.path.join(path, WITNESS))
    return {"read": time.perf_counter() - started}


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
    """The most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


if __name__ == "__main__":
    way = {"plan": plan_once, "bound": read_bare}[sys.argv[1]]
    print(json.dumps(way(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
