"""Asset events as the task process sends them, with Airflow's own accessor and serialization."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset, AssetAlias, BaseOperator
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.sdk.execution_time.task_runner import _build_asset_profiles, _serialize_outlet_events
from airflow.serialization.serialized_objects import DagSerialization

from tradewind import ExecutorStep, experiment_dag
from tradewind.plans.plan import Decision, PlannedStep
from tradewind.tasks.assets import ExperimentError, emit_made, emit_nothing, emit_reused, step_asset


@pytest.fixture(autouse=True)
def airflow_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))


def nothing(config: Any) -> None: ...


def step(name: str) -> ExecutorStep:
    return ExecutorStep(name, nothing, {})


def context_of(task: Any) -> Any:
    return {"task": task, "outlet_events": OutletEventAccessors()}


def sent(context: Any) -> dict[str, Any]:
    """Return name -> extra of the events, one per outlet, that Airflow would emit for a success now."""
    extras = {
        event["dest_asset_key"]["name"]: event["extra"] for event in _serialize_outlet_events(context["outlet_events"])
    }
    outlets = [profile.name for profile in _build_asset_profiles(context["task"].outlets)]
    assert extras.keys() <= set(outlets), "an extra without an outlet is lost"
    return {name: extras.get(name, {}) for name in outlets}


def planned(name: str, decision: Decision) -> PlannedStep:
    return PlannedStep(name, name, "abc123", f"gs://b/{name}-abc123", decision, "why", producer=f"who made {name}")


def test_a_task_that_made_nothing_gives_no_event() -> None:
    dag = experiment_dag("made", [step("tokenize/code")])
    assert dag is not None
    context = context_of(dag.get_task("tokenize_code"))
    emit_nothing(context, ["tokenize/code"])
    assert sent(context) == {}


def test_what_a_task_made_is_an_event_of_the_steps_asset() -> None:
    context = context_of(BaseOperator(task_id="t", outlets=[step_asset("tokenize/code")]))
    emit_made(context, "tokenize/code", "tokenize/code-abc123", "gs://b/tokenize/code-abc123", "attempt 2 of run r")
    (event,) = _serialize_outlet_events(context["outlet_events"])
    others = Asset("tokenize/code")  # as a consumer writes it in its schedule
    assert event["dest_asset_key"] == {"name": others.name, "uri": others.uri}
    assert sent(context) == {
        "tokenize/code": {
            "version": "tokenize/code-abc123",
            "path": "gs://b/tokenize/code-abc123",
            "producer": "attempt 2 of run r",
        }
    }


@pytest.mark.parametrize("own", [Asset("other"), AssetAlias("other"), Asset("tokenize/code", "gs://b/mine")])
def test_outlets_of_the_users_own_are_left_alone(own: Any) -> None:
    context = context_of(BaseOperator(task_id="t", outlets=[own]))
    emit_made(context, "tokenize/code", "tokenize/code-abc123", "gs://b/x", "attempt 1")
    emit_nothing(context, ["tokenize/code"])
    assert sent(context) == {own.name: {}}


def test_reused_outputs_give_events_only_when_that_was_asked_for() -> None:
    steps = [step("a"), step("b"), step("c")]
    decided = [planned("a", Decision.REUSE), planned("b", Decision.RUN), planned("c", Decision.PRUNED)]
    quiet, talking = (experiment_dag("made", steps, asset_events_of_reused=asked) for asked in (False, True))
    assert quiet is not None and talking is not None
    context = context_of(quiet.get_task("plan"))
    emit_reused(context, decided)
    assert sent(context) == {}
    context = context_of(talking.get_task("plan"))
    emit_reused(context, decided)
    told = {"version": "a-abc123", "path": "gs://b/a-abc123", "producer": "who made a", "cached": True}
    assert sent(context) == {"a": told}


def test_every_step_task_declares_asset_and_plan_only_on_request() -> None:
    """The declaration lets Airflow know the asset before the first events, of which two may be concurrent."""
    dag = experiment_dag("made", [step("x/a"), step("b")])
    assert dag is not None
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    outlets = {task.task_id: [(asset.name, asset.uri) for asset in task.outlets] for task in stored.tasks}
    assert outlets == {"plan": [], "x_a": [("x/a", "x/a")], "b": [("b", "b")]}


@pytest.mark.parametrize("name", ["self", "context"])
def test_invalid_asset_name_is_refused_before_step_runs(name: str) -> None:
    with pytest.raises(ExperimentError, match=f"Step {name!r} cannot have this name"):
        experiment_dag("made", [step(name)])


# ---- consumers, as Airflow's own records list them

DAGS = """
from airflow.sdk import DAG, Asset
from airflow.providers.standard.operators.empty import EmptyOperator
from tradewind import ExecutorStep, experiment_dag
def nothing(config): ...
experiment_dag("made", [ExecutorStep(name, nothing, {}) for name in ("x/a", "b")])
schedules = {
    "by_name": [Asset("x/a")],
    "by_reference": [Asset.ref(name="x/a")],
    "by_both": [Asset("x/a"), Asset("b")],
    "of_another": [Asset("b")],
}
for dag_id, schedule in schedules.items():
    with DAG(dag_id, schedule=schedule):
        EmptyOperator(task_id="t")
"""

TELL = """
import copy, json, sys
import pendulum
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.asset import AssetEvent
from airflow.models.dag import DagModel
from airflow.models.dagbag import DBDagBag
from airflow.models.dagbundle import DagBundleModel
from airflow.models.taskinstance import TaskInstance
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.sdk.execution_time.task_runner import _build_asset_profiles, _serialize_outlet_events
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import select, update
from tradewind.tasks.assets import emit_made, emit_nothing

initdb()
with create_session() as session:
    session.add(DagBundleModel(name="here"))
bag = DagBag(sys.argv[1], bundle_path=sys.argv[1], bundle_name="here")
sync_bag_to_db(bag, "here", None)
with create_session() as session:
    session.execute(update(DagModel).values(is_paused=False))
    DBDagBag().get_latest_version_of_dag("made", session=session).create_dagrun(
        run_id="run", run_after=pendulum.now(), run_type=DagRunType.MANUAL, session=session,
        triggered_by=DagRunTriggeredByType.TEST, state=DagRunState.RUNNING,
    )

def end(has_made):
    task = copy.deepcopy(bag.dags["made"].get_task("x_a"))  # each in a process of its own
    context = {"task": task, "outlet_events": OutletEventAccessors()}
    if has_made:
        emit_made(context, "x/a", "x/a-abc123", "/p/x/a-abc123", "me")
    else:
        emit_nothing(context, ["x/a"])
    with create_session() as session:
        instance = session.scalar(select(TaskInstance).where(TaskInstance.task_id == "x_a"))
        events = list(_serialize_outlet_events(context["outlet_events"]))
        TaskInstance.register_asset_changes_in_db(instance, list(_build_asset_profiles(task.outlets)), events)
    SchedulerJobRunner(Job())._update_asset_orphanage()
    with create_session() as session:
        extras = [event.extra for event in session.scalars(select(AssetEvent))]
        to_run = sorted(dag.dag_id for dag in DagModel.dags_needing_dagruns(session)[0])
    return [extras, to_run]

print("RESULT" + json.dumps([end(False), end(True)]))
"""


@pytest.mark.slow
def test_asset_schedule_triggers_by_name_and_reference(tmp_path: Path) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "made.py").write_text(DAGS)
    env = dict(os.environ, AIRFLOW_HOME=str(tmp_path), AIRFLOW__CORE__LOAD_EXAMPLES="False")
    done = subprocess.run([sys.executable, "-c", TELL, str(dags)], env=env, capture_output=True, text=True, check=False)
    result = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert result, done.stdout + done.stderr
    after_nothing, after_making = json.loads(result[0].removeprefix("RESULT"))
    assert after_nothing == [[], []]
    extras, to_run = after_making
    assert extras == [{"version": "x/a-abc123", "path": "/p/x/a-abc123", "producer": "me"}]
    assert to_run == ["by_name", "by_reference"]
