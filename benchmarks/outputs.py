"""Finished outputs, as runs leave them: on this machine, or in a Cloud Storage in its own process.

Of its own, so that the store's work is not counted as the plan's.
"""

from __future__ import annotations

import json
import posixpath
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path

from benchmarks.graphs import SHAPES, checked_output, last_steps, steps_of
from benchmarks.processes import ServerProcess, served
from tradewind.records.lease import Lease, Phase, lease_path, new_owner_id
from tradewind.records.record import Status, status_path
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.steps import ResolvedExperiment, resolve

BUCKET = "bench"
BUCKET_PREFIX = f"gs://{BUCKET}/outputs"
LATENCY_S = 0.02
WITNESS = "data/part-0"
INFO_FILE = ".executor_info"


def experiment_of(shape: str, count: int, prefix: str) -> ResolvedExperiment:
    """Return the experiment of a graph, as in the benchmarks' DAGs."""
    graph = SHAPES[shape](count)
    return resolve(last_steps(graph, steps_of(graph)), prefix)


def cloud_of(shape: str, count: int) -> AbstractContextManager[ServerProcess]:
    """Serve a Cloud Storage with the finished outputs of that graph."""
    return served(make_cloud, shape, count)


def make_cloud(shape: str, count: int) -> LocalCloudStorage:
    """Return that store, in the process that serves it."""
    server = LocalCloudStorage()
    server.latency_s = LATENCY_S
    server.buckets.create(BUCKET)
    files = chain(finished_files(experiment_of(shape, count, BUCKET_PREFIX)), checked_files(count, BUCKET_PREFIX))
    for path, text in files:
        server.buckets.put(BUCKET, path.removeprefix(f"gs://{BUCKET}/"), text.encode(), {}, {})
    return server


def finished_files(experiment: ResolvedExperiment) -> Iterator[tuple[str, str]]:
    """Yield path and text of each file of finished steps, results included."""
    for step in experiment.steps:
        by = {"dag": "nightly", "run": "scheduled__2026-11-20T00:00:00+00:00", "task": step.name, "try": 1}
        lease = Lease(
            new_owner_id(), time.time(), Phase.COMMITTED, attempt=1, by=by, version="", digest="0" * 64, witness=WITNESS
        )
        yield lease_path(step.output_path), lease.to_json()
        yield status_path(step.output_path), Status.SUCCESS.value
        yield posixpath.join(step.output_path, INFO_FILE), json.dumps({"version": step.version})
        yield posixpath.join(step.output_path, WITNESS), "a result"


def checked_files(count: int, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of the status of each output that a task checks itself."""
    for index in range(count):
        yield status_path(checked_output(index, prefix)), Status.SUCCESS.value


def write(files: Iterable[tuple[str, str]]) -> None:
    """Write these texts to files of this machine."""
    for path, text in files:
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
