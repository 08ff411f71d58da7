"""Asset events, as the task process sends them: the accessor and its serialisation are Airflow's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset, AssetAlias, BaseOperator
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.sdk.execution_time.task_runner import _build_asset_profiles, _serialize_outlet_events
from airflow.serialization.serialized_objects import DagSerialization

from tradewind import ExecutorStep, experiment_dag
from tradewind.operators.assets import AssetNameError, emit_made, emit_reused, step_alias
from tradewind.plans.plan import Decision, PlannedStep


@pytest.fixture(autouse=True)
def airflow_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))


def nothing(config: Any) -> None: ...


def step(name: str) -> ExecutorStep:
    return ExecutorStep(name, nothing, {})


def context_of(task: Any) -> Any:
    return {"task": task, "outlet_events": OutletEventAccessors()}


def sent(context: Any) -> list[Any]:
    return list(_serialize_outlet_events(context["outlet_events"]))


def planned(name: str, decision: Decision) -> PlannedStep:
    return PlannedStep(name, name, "abc123", f"gs://b/{name}-abc123", decision, "why", producer=f"who made {name}")


def test_a_task_that_did_nothing_gives_no_event() -> None:
    dag = experiment_dag("made", [step("tokenize/code")])
    assert dag is not None
    task = dag.get_task("tokenize_code")
    assert [profile.type for profile in _build_asset_profiles(task.outlets)] == ["AssetAlias"]
    assert sent(context_of(task)) == []


def test_what_a_task_made_is_an_event_of_the_steps_asset() -> None:
    task = BaseOperator(task_id="t", outlets=[step_alias("tokenize/code")])
    context = context_of(task)
    emit_made(context, "tokenize/code", "tokenize/code-abc123", "gs://b/tokenize/code-abc123", "attempt 2 of run r")
    (event,) = sent(context)
    assert event["source_alias_name"] == "tokenize/code"
    assert event["extra"] == {
        "version": "tokenize/code-abc123",
        "path": "gs://b/tokenize/code-abc123",
        "producer": "attempt 2 of run r",
    }
    others = Asset("tokenize/code")  # as a consumer writes it in its schedule
    assert event["dest_asset_key"] == {"name": others.name, "uri": others.uri}


def test_a_task_without_the_outlet_sends_nothing() -> None:
    context = context_of(BaseOperator(task_id="t", outlets=[AssetAlias("other")]))
    emit_made(context, "tokenize/code", "tokenize/code-abc123", "gs://b/x", "attempt 1")
    assert sent(context) == []


def test_reused_outputs_give_events_only_when_that_was_asked_for() -> None:
    steps = [step("a"), step("b"), step("c")]
    decided = [planned("a", Decision.REUSE), planned("b", Decision.RUN), planned("c", Decision.PRUNED)]
    quiet, talking = (experiment_dag("made", steps, asset_events_of_reused=asked) for asked in (False, True))
    assert quiet is not None and talking is not None
    context = context_of(quiet.get_task("plan"))
    emit_reused(context, decided)
    assert sent(context) == []
    context = context_of(talking.get_task("plan"))
    emit_reused(context, decided)
    (event,) = sent(context)
    assert event["dest_asset_key"] == {"name": "a", "uri": "a"}
    assert event["extra"] == {
        "version": "a-abc123",
        "path": "gs://b/a-abc123",
        "producer": "who made a",
        "cached": True,
    }


def test_every_step_task_declares_its_alias_and_plan_only_on_request() -> None:
    dag = experiment_dag("made", [step("x/a"), step("b")])
    assert dag is not None
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    outlets = {task.task_id: [alias.name for alias in task.outlets] for task in stored.tasks}
    assert outlets == {"plan": [], "x_a": ["x/a"], "b": ["b"]}


@pytest.mark.parametrize("name", ["self", "context", "airflow://x"])
def test_a_name_that_no_asset_can_have_is_refused_before_the_step_runs(name: str) -> None:
    with pytest.raises(AssetNameError, match=f"Step {name!r} cannot be called so"):
        experiment_dag("made", [step(name)])
