"""A real Airflow for the length of a measurement, with DAG files of the measurement's own."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import ROOT
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.airflow_api import AirflowApi
from tradewind.rehearsal.local.processes import LocalStack


@contextmanager
def bench_airflow(
    write_dags: Callable[[Path, str], None],
    settings: Mapping[str, str],
    connections: Mapping[str, str] | None = None,
    python: Path = Path(sys.executable),
) -> Iterator[tuple[LocalAirflow, AirflowApi]]:
    """An Airflow that schedules nothing by itself, in a folder that is gone afterwards.

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
            airflow = LocalAirflow(
                stack, dags_folder=dags, connections=connections or {}, settings=environment, python=python
            )
            airflow.start()
            yield airflow, AirflowApi(airflow.url, airflow.username, airflow.password)
        finally:
            stack.stop(grace_seconds=5.0)
