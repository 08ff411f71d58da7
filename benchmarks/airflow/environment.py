"""Run a real Airflow for the length of a measurement, with its DAG files."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import ROOT
from tradewind.rehearsal.local import airflow_server
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.airflow_api import AirflowApi
from tradewind.rehearsal.local.processes import LocalStack


class PeerAirflow(LocalAirflow):
    """An Airflow whose environment lacks Tradewind, so its API server starts by the path of the program's file."""

    def start_component(self, name: str) -> None:
        """Start one component."""
        if name != "api-server":
            return super().start_component(name)
        # -P keeps the program's folder off the import path: it has modules named airflow and ray.
        argv = (self._python, "-P", airflow_server.__file__, name)
        self._children[name] = self.stack.start(f"airflow-{name}", argv, self.env())


@contextmanager
def bench_airflow(
    write_dags: Callable[[Path, str], None],
    settings: Mapping[str, str],
    connections: Mapping[str, str] | None = None,
    python: Path = Path(sys.executable),
) -> Iterator[tuple[LocalAirflow, AirflowApi]]:
    """Run an Airflow that schedules nothing by itself, in a temporary folder.

    Args:
        write_dags: Writes the DAG files to a folder, for outputs below a prefix.
        settings: Further environment variables of all its processes.
        connections: Its connections, as JSON.
        python: The interpreter that has Airflow.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {"PYTHONPATH": path, "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False", **settings}
    with tempfile.TemporaryDirectory(prefix="tradewind-bench-", ignore_cleanup_errors=True) as folder:
        stack, dags = LocalStack(Path(folder)), Path(folder, "dags")
        dags.mkdir()
        try:
            write_dags(dags, str(Path(folder, "store")))
            kind = LocalAirflow if python == Path(sys.executable) else PeerAirflow
            airflow = kind(stack, dags_folder=dags, connections=connections or {}, settings=environment, python=python)
            airflow.start()
            yield airflow, AirflowApi(airflow.url, airflow.username, airflow.password)
        finally:
            stack.stop(grace_seconds=5.0)
