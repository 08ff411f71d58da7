"""Outputs that are all finished, as our own runs leave them: on this machine, or in a Cloud Storage of its own process.

``python -m benchmarks.plans_store SHAPE COUNT LATENCY`` serves such a store until its standard input ends. It says
where on its first line; for each line that it is sent it says how many requests there were since, by kind.
"""

from __future__ import annotations

import json
import posixpath
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any

from benchmarks.graphs import SHAPES, last_steps, steps_of
from tradewind.records.leases import Lease, Phase, lease_path, new_owner
from tradewind.records.status import Status, status_path
from tradewind.rehearsal.cloud_storage import LocalCloudStorage
from tradewind.steps import ResolvedExperiment, resolve

BUCKET = "bench"
BUCKET_PREFIX = f"gs://{BUCKET}/outputs"
WITNESS = "data/part-0"
INFO_FILE = ".executor_info"


class CloudProcess:
    """A Cloud Storage in another process, so that its work is not counted as the plan's."""

    def __init__(self, process: subprocess.Popen[str], lines: IO[str]) -> None:
        self._process = process
        self._lines = lines
        self.url = str(self._next())

    def requests(self) -> dict[str, int]:
        """How many requests there were since this was asked last, by kind."""
        assert self._process.stdin is not None
        self._process.stdin.write("requests\n")
        self._process.stdin.flush()
        return dict(self._next())

    def _next(self) -> Any:
        line = self._lines.readline()
        if not line:
            raise RuntimeError(f"The store of the benchmark ended with exit code {self._process.wait()}.")
        return json.loads(line)


@contextmanager
def cloud_of(shape: str, count: int, latency_s: float) -> Iterator[CloudProcess]:
    """A Cloud Storage in which all outputs of that graph are finished."""
    command = [sys.executable, "-m", "benchmarks.plans_store", shape, str(count), str(latency_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            yield CloudProcess(process, process.stdout)
        finally:
            process.stdin.close()


def experiment_of(shape: str, count: int, prefix: str) -> ResolvedExperiment:
    """The experiment of a graph, as the benchmarks' DAGs have it."""
    graph = SHAPES[shape](count)
    return resolve(last_steps(graph, steps_of(graph)), prefix)


def finished_files(experiment: ResolvedExperiment) -> Iterator[tuple[str, str]]:
    """Path and text of each file that finished steps leave, their results included."""
    for step in experiment.steps:
        by = {"dag": "nightly", "run": "scheduled__2026-11-20T00:00:00+00:00", "task": step.name, "try": 1}
        lease = Lease(
            new_owner(), time.time(), Phase.COMMITTED, attempt=1, by=by, version="", digest="0" * 64, witness=WITNESS
        )
        yield lease_path(step.output_path), lease.to_json()
        yield status_path(step.output_path), Status.SUCCESS.value
        yield posixpath.join(step.output_path, INFO_FILE), json.dumps({"version": step.version})
        yield posixpath.join(step.output_path, WITNESS), "a result"


def checked_output(index: int, prefix: str) -> str:
    """Where the task of that number looks, if every task looks for itself."""
    return posixpath.join(prefix, "checked", str(index))


def checked_files(count: int, prefix: str) -> Iterator[tuple[str, str]]:
    """Path and text of the status of each output that a task looks for itself."""
    for index in range(count):
        yield status_path(checked_output(index, prefix)), Status.SUCCESS.value


def write_finished(experiment: ResolvedExperiment) -> None:
    """Make all outputs of ``experiment``, whose prefix is a folder, finished ones."""
    write_files(finished_files(experiment))


def write_files(files: Iterable[tuple[str, str]]) -> None:
    """Write these texts to files of this machine."""
    for path, text in files:
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def main(shape: str, count: str, latency: str) -> None:
    """Serve a store until standard input ends."""
    server = LocalCloudStorage()
    server.buckets.create(BUCKET)
    experiment = experiment_of(shape, int(count), BUCKET_PREFIX)
    for path, text in chain(finished_files(experiment), checked_files(int(count), BUCKET_PREFIX)):
        server.buckets.put(BUCKET, path.removeprefix(f"gs://{BUCKET}/"), text.encode(), {}, {})
    server.start()
    server.latency_s = float(latency)
    print(json.dumps(server.url), flush=True)
    for _ in sys.stdin:
        counts = dict(server.requests)
        server.requests.clear()
        print(json.dumps(counts), flush=True)
    server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
