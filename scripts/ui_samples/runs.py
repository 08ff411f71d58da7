"""Run the sample DAGs with ``dag.test()``, in an Airflow that ``scripts.ui_stack`` has prepared.

``python -m scripts.ui_samples.runs [--few]``, in the environment of that Airflow. Plans, tasks and records are those
of real runs. Two things are changed afterwards, by the package's own writers: the dry run of 1,000 steps gets decisions
of every kind, and the attempts of the training began when their timelines say.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import BundleDagBag
from airflow.models.asset import TaskOutletAssetReference
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import delete

from tradewind.plans.plan import Decision, Plan, PlannedStep, chunks
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
    ("big_plan", {"dry_run": True}),
]
FEW: Final = [("hello_world", {}), ("hello_world", {}), ("plain", {})]
"""For tests: the second run of hello_world reuses what the first made."""
REASONS: Final = {
    Decision.RUN: "'learning_rate' changed from 0.002 to 0.003",
    Decision.REUSE: "made by run manual__2026-11-28T03:00:00+00:00 of big_plan, attempt 1",
    Decision.WAIT: "run manual__2026-11-29T03:00:00+00:00 of big_plan is making it, attempt 2",
    Decision.BLOCKED: "its input failed before: clear the step, or set force_run_failed",
    Decision.PRUNED: "no running step would read it",
}


def run(dag_id: str, conf: dict[str, Any]) -> Any:
    """Run the DAG once, read from its file again, since ``dag.test()`` leaves a run's params in the DAG."""
    for bundle in DagBundlesManager().get_all_dag_bundles():
        if bundle.name != (dag_id if dag_id == "big_plan" else "samples"):
            continue
        bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
        assert not bag.import_errors, bag.import_errors
        return bag.dags[dag_id].test(run_conf=conf)
    raise LookupError(dag_id)


def vary_decisions(made: Any) -> None:
    """Store the plan of a run again, with decisions of every kind.

    The references of its tasks to assets go: for each, Airflow 3.3's ``ui/structure/structure_data`` decodes the whole
    DAG once more, which takes 10 GB and minutes for 1,000 of them.
    """
    key = {"dag_id": made.dag_id, "run_id": made.run_id, "task_id": "plan"}
    with create_session() as session:
        [xcom] = session.query(XComModel).filter_by(key="return_value", **key)
        plan = Plan.from_json(XComModel.deserialize_value(xcom))
        varied = replace(plan, steps=tuple(varied_steps(plan)))
        for name, value in {"return_value": varied.to_json(), **chunks(varied)}.items():
            XComModel.set(name, value, session=session, **key)
        session.execute(delete(TaskOutletAssetReference).where(TaskOutletAssetReference.dag_id == made.dag_id))


def varied_steps(plan: Plan) -> Iterator[PlannedStep]:
    """Yield the steps: the domain ``web`` runs and what reads it, two others wait or are blocked in part."""
    for number, step in enumerate(plan.steps):
        decision = Decision.REUSE
        if step.name.startswith("big/web/") or step.name.count("/") == 1:
            decision = Decision.RUN
        elif step.name.startswith("big/law/clean") and number % 4 == 0:
            decision = Decision.WAIT
        elif step.name.startswith("big/news/clean_9"):
            decision = Decision.BLOCKED
        elif step.name == "big/recipes/raw":
            decision = Decision.PRUNED
        is_made = decision in (Decision.REUSE, Decision.WAIT)
        yield replace(
            step,
            decision=decision,
            reason=REASONS[decision],
            producer="run manual__2026-11-28T03:00:00+00:00 of big_plan" if is_made else None,
            estimate="about 12 min on 1 × v4-8" if decision is Decision.RUN else None,
        )


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
        made = run(dag_id, conf)
        print(f"{dag_id} {conf}: {made.state}", flush=True)
        if dag_id == "big_plan":
            vary_decisions(made)
    date_attempts(store)
    for pinned in sorted(store.glob("tiny/board-??????"), key=lambda path: path.stat().st_mtime)[-1:]:
        add_pin(str(store), Pin(str(pinned), "Ada", utc_now(), "in the report of November"))
    sys.stdout.flush()
    os._exit(0)  # Airflow's exit handlers take seconds and have nothing to clean up


if __name__ == "__main__":
    main()
