"""The process behind ``tradewind rehearse up --fleet``: clusters of a fleet, and an Airflow if that is wanted.

Which clusters is in the plan that lies in its folder. It is up when its control file is there, and ends with all that
it started when it is told to (SIGTERM).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tradewind.rehearsal.cloud.daemon import airflow_settings, heard_ends, serve
from tradewind.rehearsal.fleet.fleet import RehearsalFleet
from tradewind.rehearsal.fleet.plan import FleetPlan
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.processes import LocalStack


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to end."""
    parser = argparse.ArgumentParser(prog="python -m tradewind.rehearsal.fleet.daemon", description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--dags", type=Path)
    options = parser.parse_args(argv)
    plan = FleetPlan.of_folder(options.root)
    if plan is None:
        parser.error(f"there is no plan in {options.root}")
    with heard_ends() as told_to_end:
        stack = LocalStack(options.root)
        with running(stack, plan, options.dags) as fleet:
            fleet.write_control()
            serve(stack, told_to_end)
    return 0


@contextmanager
def running(stack: LocalStack, plan: FleetPlan, dags: Path | None) -> Iterator[RehearsalFleet]:
    """The clusters of ``plan``, and an Airflow that reads ``dags``, if that is given."""
    fleet = RehearsalFleet(stack, plan)
    with ExitStack() as parts:
        parts.callback(fleet.stop)
        fleet.start()
        if dags is not None:
            default = plan.default_cluster
            settings = fleet.env() | airflow_settings(default.bucket, default.connection)
            known = {name: json.dumps(fields) for name, fields in fleet.connections().items()}
            airflow = LocalAirflow(stack, dags_folder=dags, connections=known, settings=settings)
            parts.callback(airflow.stop_components)
            airflow.start()
            fleet.addresses["airflow"] = airflow.url
        yield fleet


if __name__ == "__main__":
    sys.exit(main())
