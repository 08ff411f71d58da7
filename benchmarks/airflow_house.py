"""A real Airflow for the length of a measurement, with DAG files of the measurement's own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tradewind.rehearsal.airflow_api import AirflowApi
from tradewind.rehearsal.local_airflow import LocalAirflow
from tradewind.rehearsal.processes import LocalStack

ROOT = Path(__file__).parents[1]


@contextmanager
def bench_airflow(write_dags: Callable[[Path, str], None], **settings: str) -> Iterator[AirflowApi]:
    """An Airflow that schedules nothing by itself, in a folder that is gone afterwards.

    Args:
        write_dags: Writes the DAG files to a folder, for outputs below a prefix.
        settings: Further environment variables of all its processes.
    """
    root = Path(tempfile.mkdtemp(prefix="tradewind-bench-"))
    stack = LocalStack(root)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {"PYTHONPATH": path, "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False", **settings}
    try:
        write_dags(root / "dags", str(root / "store"))
        airflow = LocalAirflow(stack, dags_folder=root / "dags", connections={}, settings=environment)
        airflow.start()
        yield AirflowApi(airflow.url, airflow.username, airflow.password)
    finally:
        stack.stop(grace_seconds=5.0)
        shutil.rmtree(root, ignore_errors=True)
