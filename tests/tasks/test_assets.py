"""Asset events as the task process sends them, with Airflow's own accessor and serialization."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset, AssetAlias, BaseOperator
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.sdk.execution_time.task_runner import _build_asset_profiles, _serialize_outlet_events
from airflow.serialization.serialized_objects import DagSerialization

from tests.tasks.airflow_child import run_in_airflow
from tradewind import ExecutorStep, experiment_dag
from tradewind.plans.plan import Decision, PlannedStep
from tradewind.tasks.assets import ExperimentError, emit_made, emit_nothing, emit_reused, step_asset

pytestmark = pytest.mark.usefixtures("airflow_home")


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
    return PlannedStep(
        name, name, "abc123", f"gs://b/{name}-abc123", decision, "why", producer=f"the producer of {name}"
    )


def test_task_that_made_nothing_emits_no_event() -> None:
    dag = experiment_dag("made", [step("tokenize/code")])
    assert dag is not None
    context = context_of(dag.get_task("tokenize_code"))
    emit_nothing(context, "tokenize/code")
    assert sent(context) == {}


def test_made_output_is_an_event_of_the_step_asset() -> None:
    context = context_of(BaseOperator(task_id="t", outlets=[step_asset("tokenize/code")]))
    emit_made(context, "tokenize/code", "tokenize/code-abc123", "gs://b/tokenize/code-abc123", "attempt 2 of run r")
    (event,) = _serialize_outlet_events(context["outlet_events"])
    scheduled = Asset("tokenize/code")  # as a consumer writes it in its schedule
    assert event["dest_asset_key"] == {"name": scheduled.name, "uri": scheduled.uri}
    path, producer = "gs://b/tokenize/code-abc123", "attempt 2 of run r"
    assert sent(context) == {"tokenize/code": {"version": "tokenize/code-abc123", "path": path, "producer": producer}}


@pytest.mark.parametrize("own", [Asset("other"), AssetAlias("other"), Asset("tokenize/code", "gs://b/mine")])
def test_outlets_of_the_user_stay(own: Any) -> None:
    context = context_of(BaseOperator(task_id="t", outlets=[own]))
    emit_nothing(context, "tokenize/code")
    assert sent(context) == {own.name: {}}
    emit_made(context, "tokenize/code", "tokenize/code-abc123", "gs://b/x", "attempt 1")
    assert context["task"].outlets == [own, step_asset("tokenize/code")]


def test_plan_emits_events_of_reused_outputs() -> None:
    context = context_of(BaseOperator(task_id="plan"))
    emit_reused(context, [planned("a", Decision.REUSE), planned("b", Decision.RUN), planned("c", Decision.PRUNED)])
    extra = {"version": "a-abc123", "path": "gs://b/a-abc123", "producer": "the producer of a", "cached": True}
    assert sent(context) == {"a": extra}


def outlets_of(steps: list[ExecutorStep]) -> dict[str, list[tuple[str, str]]]:
    dag = experiment_dag("made", steps)
    assert dag is not None
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    return {task.task_id: [(asset.name, asset.uri) for asset in task.outlets] for task in stored.tasks}


def test_step_tasks_declare_their_assets() -> None:
    """The declaration lets Airflow know the asset before the first events, of which two may be concurrent."""
    named = {"x_a": ("x/a", "x/a"), "b_1": ("b 1?", "b 1?"), "größe": ("größe", "gr%C3%B6%C3%9Fe")}
    assert outlets_of([step("x/a"), step("b 1?"), step("größe"), step("x" * 300)]) == (
        {"plan": []} | {task: [asset] for task, asset in named.items()} | {"x" * 240: [("x" * 300,) * 2]}
    )


def test_tasks_of_large_experiment_declare_nothing() -> None:
    assert not any(outlets_of([step(f"x{number}") for number in range(201)]).values())


@pytest.mark.parametrize("name", ["self", "context", "é" * 300])
def test_invalid_asset_name_is_refused_before_step_runs(name: str) -> None:
    with pytest.raises(ExperimentError, match=f"Step '{name[:30]}.* cannot have this name") as refused:
        experiment_dag("made", [step(name)])
    assert len(str(refused.value)) < 250


# ---- consumers, as Airflow's own records list them

DAGS = """
from airflow.sdk import DAG, Asset
from airflow.providers.standard.operators.empty import EmptyOperator
from tradewind import ExecutorStep, experiment_dag
def nothing(config): ...
experiment_dag("made", [ExecutorStep(name, nothing, {}) for name in ("x/a", "größe")])
experiment_dag("large", [ExecutorStep(f"y/{number}", nothing, {}) for number in range(201)])
schedules = {
    "by_name": [Asset("x/a")],
    "by_reference": [Asset.ref(name="x/a")],
    "by_both": [Asset("x/a"), Asset.ref(name="größe")],
    "of_another": [Asset.ref(name="größe")],
    "of_large": [Asset("y/7")],
}
for dag_id, schedule in schedules.items():
    with DAG(dag_id, schedule=schedule):
        EmptyOperator(task_id="t")
"""

EMIT = """
import copy
from airflow.models.asset import AssetEvent
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.sdk.execution_time.task_runner import _build_asset_profiles, _serialize_outlet_events
from tradewind.tasks.assets import emit_made, emit_nothing

with create_session() as session:
    for dag_id in ("made", "large"):
        create_run(dag_id, "run", session)

def end(has_made, dag_id="made", name="x/a"):
    task_id = name.replace("/", "_")
    task = copy.deepcopy(bag.dags[dag_id].get_task(task_id))  # each in a process of its own
    context = {"task": task, "outlet_events": OutletEventAccessors()}
    if has_made:
        emit_made(context, name, f"{name}-abc123", f"/p/{name}-abc123", "me")
    else:
        emit_nothing(context, name)
    with create_session() as session:
        instance = session.scalar(select(TaskInstance).where(TaskInstance.task_id == task_id))
        events = list(_serialize_outlet_events(context["outlet_events"]))
        TaskInstance.register_asset_changes_in_db(instance, list(_build_asset_profiles(task.outlets)), events)
    SchedulerJobRunner(Job())._update_asset_orphanage()
    with create_session() as session:
        extras = [event.extra for event in session.scalars(select(AssetEvent))]
        to_run = sorted(dag.dag_id for dag in DagModel.dags_needing_dagruns(session)[0])
    return [extras, to_run]

report([end(False), end(True), end(True, "large", "y/7"), end(True, "large", "y/8")])
"""


@pytest.mark.slow
def test_asset_schedule_triggers_by_name_and_reference(tmp_path: Path) -> None:
    after_nothing, (extras, to_run), after_large, after_unknown = run_in_airflow(tmp_path, DAGS, EMIT)
    assert after_nothing == [[], []]
    assert extras == [{"version": "x/a-abc123", "path": "/p/x/a-abc123", "producer": "me"}]
    assert to_run == ["by_name", "by_reference"]
    large = {"version": "y/7-abc123", "path": "/p/y/7-abc123", "producer": "me"}
    assert after_large == after_unknown == [[*extras, large], [*to_run, "of_large"]]
