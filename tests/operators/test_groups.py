"""Groups of steps in a user's DAG: their tasks, edges and form, and what is refused at parsing."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from typing import Any

import pendulum
import pytest
from airflow.sdk import DAG, CronDataIntervalTimetable, TaskGroup, dag, task, task_group
from airflow.serialization.serialized_objects import DagSerialization

from tests.operators.contexts import context_of, run_at_midnight
from tradewind import Cpu, ExecutorStep, experiment_group, run_param, versioned
from tradewind.operators.group import ExperimentGroup
from tradewind.plans.selection import Selection
from tradewind.steps import ExperimentError
from tradewind.tasks.context import DAG_TAG, ExperimentSettings
from tradewind.tasks.group_values import plain_value
from tradewind.tasks.params import selection_in


def work(config: Any) -> None: ...


FIRST = ExecutorStep("first", work, {"at": versioned(run_param("cutoff"))})
SECOND = ExecutorStep("second", work, {"source": FIRST})


@task
def ingest() -> str:
    return "monday"


@task
def publish(paths: Any) -> None: ...


def group(group_id: str = "train", **arguments: Any) -> ExperimentGroup:
    return experiment_group(group_id, [SECOND], **{"values": {"cutoff": ingest()}, **arguments})


def edges(dag: DAG) -> dict[str, set[str]]:
    return {task.task_id: task.upstream_task_ids for task in dag.tasks}


def test_group_waits_for_its_values_and_others_for_its_outputs() -> None:
    with DAG("own") as own:
        train = group()
        publish(train.output["second"])
        before, after = (task(work).override(task_id=name)(1) for name in ("before", "after"))
        before >> train >> after
    assert edges(own) == {
        "ingest": set(),
        "before": set(),
        "train.plan": {"ingest", "before"},
        "train.first": {"train.plan"},
        "train.second": {"train.first"},
        "train.outputs": {"train.first", "train.second"},
        "publish": {"train.outputs"},
        "after": {"train.outputs"},
    }
    rules = {task.task_id.removeprefix("train."): task.trigger_rule for task in own.tasks}
    assert {rules[name] for name in ("first", "second", "outputs")} == {"none_failed"}
    assert {rules[name] for name in ("plan", "publish", "after")} == {"all_success"}
    assert f"{train.output['second']}" == (
        "{{ task_instance.xcom_pull(task_ids='train.outputs', dag_id='own', key='return_value')['second'] }}"
    )
    stored = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(own))))
    assert edges(stored) == edges(own)


@dag(dag_id="own")
def decorated(lr: float = 0.5) -> None:
    group(values={"cutoff": {"lr": lr, "at": [ingest(), "{{ ds }}"]}})
    with TaskGroup("outer", prefix_group_id=False):
        group("plain")

    @task_group
    def repeated() -> None:
        group()

    repeated()
    repeated()


def test_group_may_be_in_dag_function_and_other_groups() -> None:
    own = decorated()
    for name in ("train", "plain", "repeated.train", "repeated__1.train"):
        assert {f"{name}.{each}" for each in ("plan", "first", "second", "outputs")} <= set(own.task_dict)
        plan: Any = own.get_task(f"{name}.plan")
        assert (list(plan.steps), plan.wanted) == ([f"{name}.first", f"{name}.second"], {f"{name}.second"})
        assert own.get_task(f"{name}.first").plan_task_id == f"{name}.plan"
        assert f"{name}.force" in own.params


def test_dag_with_steps_has_the_tag_of_the_tabs() -> None:
    with DAG("own", tags=["mine"]) as own:
        group()
    assert own.tags == {"mine", DAG_TAG}


def test_default_args_of_group_precede_outer_ones() -> None:
    of_dag, of_group = {"retries": 5, "queue": "dags", "pool": "dags"}, {"queue": "outer", "owner": "outer"}
    with DAG("own", default_args=of_dag) as own, TaskGroup("outer", default_args=of_group):
        group(default_args={"owner": "team"}, pools={"cpu": "cpus"})
    for name in ("plan", "first", "outputs"):
        made = own.get_task(f"outer.train.{name}")
        pool = "cpus" if name == "first" else "dags"
        assert (made.retries, made.queue, made.owner, made.pool) == (5, "outer", "team", pool)
        assert made.retry_delay == datetime.timedelta(seconds=10)


def test_each_group_has_its_own_options_in_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TRADEWIND__ALLOWED_ROOTS", "/runs")
    with DAG("own", params={"lr": 0.5, "force": "mine", "prefix": "also mine"}) as own:
        group(force=["first"])
        group("evaluate", prefix="/runs/evaluate")
    params = own.params.dump()
    assert selection_in(params, "train") == Selection(force=("first",))
    assert selection_in({**params, "evaluate.run_only": ["second"]}, "evaluate") == Selection(("second",))
    assert own.params.get_param("train.force").schema["section"] == "Tradewind: train"
    for name, prefix in (("train", "/runs/a"), ("evaluate", "/runs/evaluate")):
        settings: ExperimentSettings = own.get_task(f"{name}.plan").settings  # type: ignore[attr-defined]
        context: Any = {"dag": own, "dag_run": run_at_midnight(), "params": {**params, f"{name}.prefix": "/runs/a"}}
        values = settings.values_of(context, {"cutoff": "monday"})
        own_params = {"lr": 0.5, "force": "mine", "prefix": "also mine", "cutoff": "monday"}
        assert values.params == {**own_params, f"{name}.prefix": "/runs/a"}
        assert settings.prefix_of(values) == prefix


@pytest.mark.parametrize(
    ("of_dag", "of_group", "expected"),
    [
        ({}, {}, "UTC"),
        ({"schedule": CronDataIntervalTimetable("@daily", timezone="Europe/Berlin")}, {}, "Europe/Berlin"),
        ({"schedule": "@daily", "start_date": pendulum.datetime(2026, 1, 1, tz="Asia/Tokyo")}, {}, "Asia/Tokyo"),
        ({"schedule": "@daily"}, {"timezone": "Asia/Tokyo"}, "Asia/Tokyo"),
    ],
)
def test_night_of_a_group_is_that_of_the_schedule(of_dag: Any, of_group: Any, expected: str) -> None:
    with DAG("own", **of_dag) as own:
        group(**of_group)
    plan: Any = own.get_task("train.plan")
    assert plan.settings.timezone == expected


def test_steps_of_one_name_have_numbered_outputs() -> None:
    steps = [ExecutorStep("same", work, {"at": versioned(n)}) for n in (1, 2)] + [ExecutorStep("outputs", work, {})]
    with DAG("own") as own:
        train = experiment_group("train", steps)
    assert list(train.output.tasks) == ["same", "same__2", "outputs"]
    assert set(own.task_dict) == {f"train.{name}" for name in ("plan", "same", "same__2", "outputs__2", "outputs")}


@task_group
def mapped(number: int) -> None:
    group()


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: group(values={}), "run_param('cutoff') is not a param of this DAG, which has none at all. Give"),
        (lambda: (group(), group()), "This DAG has a group or task 'train' already"),
        (lambda: (ingest.override(task_id="train")(), group()), "This DAG has a group or task 'train' already"),
        (lambda: group().expand(values=[1]), "Group 'train' is mapped"),
        (lambda: mapped.expand(number=[1, 2]), "Group 'mapped.train' is mapped"),
        (lambda: group(values={"cutoff": work}), "value 'cutoff' is <function work"),
        (lambda: group(values={"cutoff": ingest().operator}), "value 'cutoff' is <Task(_PythonDecoratedOperator):"),
        (lambda: group(values={"cutoff": {datetime.date(2026, 1, 2)}}), "of type set, which JSON cannot represent"),
        (lambda: group(values={"cutoff": float("nan")}), "value 'cutoff' is nan, which JSON has no form for"),
        (lambda: group(values={"cutoff": CYCLE}), "value 'cutoff'.[0] contains itself"),
        (lambda: group(values=[ingest()]), "values must map names to values"),
        (lambda: group(values={"lr": 1}), "the DAG has a param 'lr' already"),
        (lambda: group("a.b"), "Group 'a.b' cannot have this id"),
        (lambda: group(7), "group_id must be text, but is 7"),
        (lambda: group(default_args=7), "default_args must be a dictionary, but is 7"),
        (lambda: group(timezone="Mars"), "group 'train': there is no time zone 'Mars'"),
        (lambda: group(max_concurrent=2), "A group has no max_concurrent"),
        (lambda: group(pools={"v9": "x"}), "group 'train': pools are for slice types"),
        (lambda: experiment_group("train", []), "group 'train' has no steps"),
        (lambda: group().output["third"], "hands on no output 'third', only those of 'first', 'second'"),
    ],
)  # fmt: skip
def test_bad_group_is_refused_by_name(make: Callable[[], Any], message: str) -> None:
    params = {} if "has none" in message else {"lr": 0.5}
    with DAG("own", params=params), pytest.raises(ExperimentError, match=re.escape(message)):
        make()


def test_group_outside_a_dag_is_refused() -> None:
    with pytest.raises(ExperimentError, match="Group 'train' is in no DAG: call experiment_group in `with DAG"):
        experiment_group("train", [SECOND], values={"cutoff": 1})


@pytest.mark.parametrize(
    ("value", "plain"),
    [("monday", "monday"), ((1, 2.0), [1, 2]), ({"a": range(2)}, {"a": [0, 1]}), (None, None), (0.5, 0.5)],
)
def test_value_of_a_task_is_read_as_json(value: Any, plain: Any) -> None:
    assert json.dumps(plain_value("Group 'train'", "cutoff", value)) == json.dumps(plain)


@pytest.mark.parametrize("value", [datetime.date(2026, 1, 2), b"\xff", {1, 2}, {"at": Cpu()}, "\ud800", [float("inf")]])
def test_result_of_a_task_that_is_no_json_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ExperimentError, match="^Group 'train': value 'cutoff'"):
        plain_value("Group 'train'", "cutoff", value)


def test_step_of_a_group_without_plan_names_it() -> None:
    with DAG("own") as own:
        group()
    context = context_of(own, "train.first")
    context["ti"].get_task_states = lambda **_: {"r": {"train.plan": "success"}}
    with pytest.raises(Exception, match="Task 'train.plan' has left no plan. Run it first: clear it and this task"):
        own.get_task("train.first").execute(context)
