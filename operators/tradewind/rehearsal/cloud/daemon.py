"""The process behind ``tradewind rehearse up``: a rehearsal cloud with slices, optionally an Airflow.

Its control file exists once it is ready. On SIGTERM it stops itself and all that it started.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tradewind.rehearsal.cloud.cloud import RAY_CONNECTION, RehearsalCloud, connections
from tradewind.rehearsal.cloud.control_client import CONTROL_FILE
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay, head_memory

BUCKET: Final = "rehearsal"
_HEAD_CPUS: Final = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM."""
    options = _parser().parse_args(argv)
    with termination_event() as stopping:
        stack = LocalStack(options.root)
        with running(stack, dict(options.slices), options.zone, options.dags) as cloud:
            cloud.write_control(stack.root)
            serve(stack, stopping)
    return 0


@contextmanager
def termination_event() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets; the signal has no other effect meanwhile."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    yield stopping


def serve(stack: LocalStack, stopping: threading.Event) -> None:
    """Keep the running stack until the process receives SIGTERM."""
    print("The rehearsal is up.", flush=True)
    stopping.wait()
    (stack.root / CONTROL_FILE).unlink(missing_ok=True)


def persistent_ray(stack: LocalStack, token: str | None = None) -> LocalRay:
    """Create a Ray cluster whose restarted head keeps its state, as the cloud clusters' heads do."""
    shutil.rmtree(stack.root / "gcs", ignore_errors=True)  # drop the state of another rehearsal's head
    return LocalRay(stack, num_cpus=_HEAD_CPUS, env=head_memory(stack.root / "gcs"), token=token)


@contextmanager
def running(stack: LocalStack, slices: Mapping[str, str], zone: str, dags: Path | None) -> Iterator[RehearsalCloud]:
    """Run a rehearsal with these slices (name → type); with ``dags``, also an Airflow that reads them."""
    cloud = RehearsalCloud(stack, persistent_ray(stack), zone=zone)
    with ExitStack() as parts:
        parts.callback(cloud.stop)
        cloud.start()
        cloud.storage.buckets.create(BUCKET, zone.rpartition("-")[0])
        with ThreadPoolExecutor() as pool:
            list(pool.map(cloud.create_slice, slices.keys(), slices.values()))
        if dags is not None:
            settings = cloud.env() | airflow_settings(BUCKET, RAY_CONNECTION)
            known = connections(cloud.ray, cloud.project)
            airflow = LocalAirflow(stack, dags_folder=dags, connections=known, settings=settings)
            parts.callback(airflow.stop_components)
            airflow.start()
            cloud.airflow, cloud.addresses["airflow"] = airflow, airflow.url
        yield cloud


def airflow_settings(bucket: str, default_cluster: str) -> dict[str, str]:
    """Return the settings of a rehearsal's Airflow: the output prefix and the default connection."""
    return {
        "AIRFLOW__TRADEWIND__PREFIX": f"gs://{bucket}",
        "AIRFLOW__TRADEWIND__DEFAULT_CLUSTER": default_cluster,
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        # Run only requested DAG runs: unpausing a nightly pipeline would start last night's run as well.
        "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tradewind.rehearsal.cloud.daemon", description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--zone", required=True)
    parser.add_argument("--slice", dest="slices", action="append", default=[], type=lambda text: text.split("=", 1))
    parser.add_argument("--dags", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
