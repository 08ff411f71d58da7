"""Run the sample DAGs with ``dag.test()``, in an Airflow that ``scripts.ui_stack`` has prepared.

``python -m scripts.ui_samples.runs [--few]``, in the environment of that Airflow. Plans, tasks and records are those
of real runs. The dry run of 1,000 steps finds records of earlier attempts, which ``big_records`` writes; the attempts
of the training are changed afterwards, so that they began when their timelines say.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import BundleDagBag

from scripts.ui_samples.big_records import remove_records, write_records
from tradewind.records.attempts import attempt_folder, attempt_numbers, read_attempt_or_none, utc_now, write_attempt
from tradewind.records.pins import Pin, add_pin
from tradewind.runtime.pods.timeline import TIMELINE_FILE, read_timeline

RUNS: Final[list[tuple[str, dict[str, Any]]]] = [
    ("hello_world", {}),
    ("hello_world", {}),
    ("hello_world", {"n": 200}),
    ("tiny_model", {"diverges": True}),
    ("tiny_model", {}),
    ("tiny_model", {"learning_rate": 0.003}),
    ("failing", {}),
    ("broken_data", {}),
    ("formats", {}),
    ("tokens", {}),
    ("plain", {}),
    ("big_plan", {"dry_run": True, "force_run_failed": False}),
]
FEW: Final = [("hello_world", {}), ("hello_world", {}), ("plain", {})]
"""For tests: the second run of hello_world reuses what the first made."""


def run(dag_id: str, conf: dict[str, Any]) -> Any:
    """Run the DAG once, read from its file again, since ``dag.test()`` leaves a run's params in the DAG."""
    for bundle in DagBundlesManager().get_all_dag_bundles():
        if bundle.name != (dag_id if dag_id == "big_plan" else "samples"):
            continue
        bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
        assert not bag.import_errors, bag.import_errors
        return bag.dags[dag_id].test(run_conf=conf)
    raise LookupError(dag_id)


def date_attempts(store: Path) -> None:
    """Let each attempt with a timeline begin and end when that does."""
    for output in map(str, store.glob("tiny/train_*-??????")):
        for number in attempt_numbers(output):
            events = read_timeline(f"{attempt_folder(output, number)}/{TIMELINE_FILE}")
            attempt = read_attempt_or_none(output, number)
            if events and attempt is not None:
                first, last = (datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
                               for at in (events[0].at - 20, events[-1].at + 5))  # fmt: skip
                write_attempt(output, replace(attempt, started_at=first, ended_at=last))


def main() -> None:
    store = Path(json.loads(os.environ["AIRFLOW_CONN_RAY_DEFAULT"])["extra"]["bucket"])
    for dag_id, conf in FEW if "--few" in sys.argv else RUNS:
        if dag_id == "big_plan":
            write_records(store)
        made = run(dag_id, conf)
        print(f"{dag_id} {conf}: {made.state}", flush=True)
    if (store / "big").exists():
        remove_records(store)
    date_attempts(store)
    for pinned in sorted(store.glob("tiny/board-??????"), key=lambda path: path.stat().st_mtime)[-1:]:
        add_pin(str(store), Pin(str(pinned), "Ada", utc_now(), "in the report of November"))
    sys.stdout.flush()
    os._exit(0)  # Airflow's exit handlers take seconds and have nothing to clean up


if __name__ == "__main__":
    main()
