"""Trigger form and concurrency limits of an experiment's DAG."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pendulum
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from tests.tasks.airflow_child import run_in_airflow
from tradewind import Cpu, ExecutorStep, Param, TpuSlice, experiment_dag
from tradewind.plans.selection import Selection, SelectionError
from tradewind.steps import ExperimentError, Gpu, on_airflow_worker, on_head_node
from tradewind.tasks.context import ExperimentSettings
from tradewind.tasks.params import FORM_SECTION, RUN_PARAMS, is_dry_run, selection_in, selection_of

pytestmark = pytest.mark.usefixtures("airflow_home")


def nothing(config: Any) -> None: ...


def step(name: str = "raw", **fields: Any) -> ExecutorStep:
    return ExecutorStep(name, nothing, {}, **fields)


def make(*steps: ExecutorStep, **arguments: Any) -> DAG:
    dag = experiment_dag("made", list(steps) or [step()], **arguments)
    assert dag is not None
    return dag


def context(**params: Any) -> Any:
    return {"params": params}


# ---- the trigger form


def form_of(dag: DAG) -> dict[str, dict[str, Any]]:
    """Return the fields of the trigger form as Airflow stores them."""
    stored: Any = DagSerialization.to_dict(dag)["dag"]["params"]
    return {name: {**field, "schema": field["schema"]["__var"]} for name, field in stored}


def test_each_experiment_has_own_section_in_trigger_form() -> None:
    form = form_of(make(params={"lr": Param(0.1, "Learning rate", type="number")}))
    selection = {"run_only": [], "force": [], "force_downstream": False, "force_run_failed": True}
    defaults = {**selection, "verify": False, "dry_run": False}
    assert list(form) == ["lr", *defaults, "prefix"]
    assert "section" not in form["lr"]["schema"]
    for name in RUN_PARAMS:
        field = form[name]
        assert field["schema"]["section"] == FORM_SECTION and field["schema"]["title"] and field["description"]
    assert {name: form[name]["default"] for name in RUN_PARAMS} == defaults


def test_dag_arguments_are_the_defaults_of_its_form() -> None:
    dag = make(run_only=["^raw"], force=("raw",), force_downstream=True, force_run_failed=False)
    expected = Selection(("^raw",), ("raw",), True, False)
    assert selection_in(dag.params.dump()) == expected
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert selection_in(stored.params.dump()) == expected


def test_form_accepts_only_values_of_its_fields() -> None:
    params = make(schedule="@daily").params
    params.update({"run_only": None, "force": ["^a", ""], "force_downstream": True, "dry_run": True})
    assert params.validate()["force"] == ["^a", ""]
    for wrong in ({"force": ["(unclosed"]}, {"run_only": "raw"}, {"force": [1]}, {"dry_run": "yes"}):
        with pytest.raises(ParamValidationError):
            make().params.update(wrong)


def test_tasks_do_not_each_carry_a_copy_of_the_form() -> None:
    stored = DagSerialization.to_dict(make(params={"lr": 0.1}))
    for task in stored["dag"]["tasks"]:
        assert [name for name, _ in task["__var"]["params"]] == ["lr"]


@pytest.mark.parametrize("name", sorted(RUN_PARAMS))
def test_own_param_with_name_of_builtin_is_refused(name: str) -> None:
    with pytest.raises(ExperimentError, match=f"'made'.* has '{name}' in its trigger form already"):
        make(params={"lr": 0.1, name: "mine"})
    with pytest.raises(ExperimentError, match=name):
        make(default_args={"params": {name: "mine"}})


def test_malformed_selection_is_refused_at_dag_parsing() -> None:
    for argument in ("run_only", "force", "allow_cross_region"):
        with pytest.raises(ExperimentError, match=rf"{argument} must be a list, such as \['raw'\], but is 'raw'"):
            make(**{argument: "raw"})
    with pytest.raises(SelectionError, match="is not a regular expression"):
        make(force=["("])


def test_form_sets_selection_and_dry_run() -> None:
    chosen = context(run_only=["^train/", "", "  "], force=None, force_downstream=True, force_run_failed=False, lr=1)
    assert selection_of(chosen) == Selection(("^train/",), (), True, False)
    assert selection_of(context()) == Selection()
    with pytest.raises(SelectionError):
        selection_of(context(force="raw"))
    emptied = make(force=["raw"]).params
    emptied.update({"force": None})
    assert selection_in(emptied.dump()) == Selection(), "an empty field is not the default"
    assert is_dry_run(context(dry_run=True))
    assert not is_dry_run(context(dry_run=False)) and not is_dry_run(context())


def test_builtin_params_are_no_run_values() -> None:
    dag = make(params={"lr": 0.1}, force=["raw"])
    values = ExperimentSettings().values_for(dag, dag.params.dump(), None, (None, None), pendulum.now())
    assert values.params == {"lr": 0.1}


@pytest.mark.parametrize(
    ("param", "given", "expected"),
    [
        (0.5, "1", "1.0"),
        (1, "2.0", "2"),
        (None, "2.0", "2"),
        (True, "true", "true"),
        (Param(None, type=["number", "null"]), "1", "1.0"),
        (Param("a", type="string"), "1.0", "1.0"),
        ([0.5, 1.0], "[0.5, 1]", "[0.5, 1.0]"),
        ([1, 0.5], "[1, 0.5, 2]", "[1, 0.5, 2.0]"),
        ([], "[2.0, {}]", "[2, {}]"),
        (Param([], type="array", items={"type": "number"}), "[1]", "[1.0]"),
        ({"a": 1.0, "b": [[0.5]]}, '{"a": 1, "b": [[1, 2]], "c": 3}', '{"a": 1.0, "b": [[1.0, 2.0]], "c": 3.0}'),
        ({"a": {"b": 1}}, '{"a": {"b": 1.0, "c": "1.0"}}', '{"a": {"b": 1, "c": "1.0"}}'),
        (Param({}, properties={"a": {"type": "integer"}}), '{"a": 1.0, "b": 1e300}', '{"a": 1, "b": 1e+300}'),
        (Param(None, anyOf=[{"type": "number"}, {"type": "null"}]), "1", "1.0"),
        (Param(None, oneOf=[{"type": "null"}, {"prefixItems": [{"type": "number"}]}]), "[1, 2.0]", "[1.0, 2]"),
        (Param(None, type=[{}], anyOf=5), "1.0", "1"),
        (Param(None, properties=[5], items=5), '{"a": [1.0]}', '{"a": [1]}'),
        (0.5, str(10**400), str(10**400)),
    ],
)
def test_number_from_json_gets_type_of_its_default(param: Any, given: str, expected: str) -> None:
    values = ExperimentSettings().values_for(
        make(params={"p": param}), {"p": json.loads(given)}, None, (None, None), pendulum.now()
    )
    assert json.dumps(values.params["p"]) == expected


def test_deep_value_of_a_param_is_refused_by_name() -> None:
    deep = json.loads("[" * 900 + "]" * 900)
    with pytest.raises(ExperimentError, match=r"param 'p'.* is nested more than 100 levels deep"):
        ExperimentSettings().values_for(make(params={"p": []}), {"p": deep}, None, (None, None), pendulum.now())


@pytest.mark.parametrize(("length_h", "night"), [(0, "2026-03-07"), (23, "2026-03-08")])
def test_empty_data_interval_counts_as_none(length_h: int, night: str) -> None:
    """In New York, 02:00 does not exist on 8 March 2026, so a manual run of ``0 2 * * *`` gets an empty interval."""
    settings, start = ExperimentSettings(timezone="America/New_York"), pendulum.datetime(2026, 3, 8, 7)
    interval = start, start.add(hours=length_h)
    values = settings.values_for(make(), {}, None, interval, pendulum.datetime(2026, 3, 8, 16))
    assert str(values.night) == night
    assert (values.data_interval_start is None) == (length_h == 0)


@pytest.mark.parametrize("schedule", [None, "@once", "@continuous", "@daily", "0 3 * * 1"])
def test_any_date_may_be_backfilled_unless_dag_catches_up(schedule: str | None) -> None:
    """Airflow makes no tasks in runs before the start date."""
    stored = DagSerialization.from_dict(DagSerialization.to_dict(make(schedule=schedule)))
    assert stored.start_date == (None if schedule in ("@once", "@continuous") else pendulum.datetime(1970, 1, 1))
    assert (stored.max_active_runs == 1) == (schedule == "@continuous")
    start = pendulum.datetime(2024, 1, 1)
    assert make(schedule=schedule, catchup=True, start_date=start).start_date == start
    assert make(schedule=schedule, catchup=True, default_args={"start_date": start}).start_date == start
    if schedule is not None:
        with pytest.raises(ExperimentError, match=r"'made': catchup needs a start_date, at which the first run starts"):
            make(schedule=schedule, catchup=True)
        for wrong in ("2024-01-01", start.date(), 5):
            with pytest.raises(ExperimentError, match=r"'made': start_date is .*, which is no datetime: give "):
                make(schedule=schedule, start_date=wrong)


# ---- concurrency


def test_max_concurrent_counts_running_steps_without_deferral(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    dag = make(step("a"), step("b"), max_concurrent=1, default_args={"deferrable": True})
    assert dag.max_active_tasks == 1
    assert [dag.get_task(name).deferrable for name in ("a", "b")] == [False, False]


CYCLE: dict[str, Any] = {}
CYCLE["a"] = CYCLE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_concurrent": 0}, "max_concurrent must be a positive integer, got 0"),
        ({"max_concurrent": True}, "max_concurrent must be a positive integer, got True"),
        ({"max_concurrent": 2**31}, "max_concurrent must be a positive integer, got 2147483648"),
        ({"max_concurrent": 2, "max_active_tasks": 2}, "max_concurrent or max_active_tasks, not both"),
        ({"cluster": 5}, "cluster must be text, but is 5"),
        ({"prefix": "/a\0"}, "prefix holds a NUL, which no database stores"),
        ({"description": "\ud800"}, "description holds half of a character"),
        ({"default_args": CYCLE}, "its arguments.default_args.a contains itself"),
        ({"params": {"p\0": 1}}, r"param 'p\x00'.name holds a NUL"),
        ({"params": {"p": ["\0"]}}, "param 'p'.[0] holds a NUL"),
        ({"params": {"p": Param(1, minimum=10**5000)}}, "param 'p' (schema).minimum is a whole number of about 5000"),
        ({"params": {"p": Param(1, enum=[CYCLE])}}, "param 'p' (schema).enum.[0].a contains itself"),
    ],
)
def test_argument_that_airflow_cannot_store_is_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=re.escape(message)):
        make(**arguments)


def test_executor_main_limits_steps_likewise(tmp_path: Path) -> None:
    file = tmp_path / "from_marin.py"
    file.write_text(
        "from tradewind import ExecutorStep, executor_main\n"
        "def nothing(config): ...\n"
        "dag = executor_main([ExecutorStep('raw', nothing, {})], max_concurrent=2, pools={'cpu': 'cpus'}, force=['r'])"
    )
    dag = runpy.run_path(str(file), run_name="from_marin")["dag"]
    assert (dag.dag_id, dag.max_active_tasks) == ("from_marin", 2)
    task = dag.get_task("raw")
    assert (task.deferrable, task.pool) == (False, "cpus")
    assert selection_in(dag.params.dump()).force == ("r",)


def test_each_step_uses_the_pool_of_its_resources() -> None:
    cases = {
        "default": (None, "cpus"),
        "cpu": (Cpu(2), "cpus"),
        "gpu": (Gpu(), "gpus"),
        "pooled": (TpuSlice("v4-16"), "tpu_v4_16"),
        "unpooled": (TpuSlice("v4-8"), "default_pool"),
        "head": (on_head_node(), "default_pool"),
        "worker": (on_airflow_worker(), "default_pool"),
    }
    steps = [step(name, resources=resources) for name, (resources, _) in cases.items()]
    dag = make(*steps, pools={"v4-16": "tpu_v4_16", "v6e-8": "not_used", "cpu": "cpus", "gpu": "gpus"})
    expected = {"plan": "default_pool"} | {name: pool for name, (_, pool) in cases.items()}
    assert {task.task_id: task.pool for task in dag.tasks} == expected
    with pytest.raises(ExperimentError, match=r"'made': pools are for slice types, 'cpu' and 'gpu': .*v4-17"):
        make(pools={"v4-17": "tpu"})


DAGS = """
from airflow.sdk import DAG
from tradewind import ExecutorStep, experiment_dag
def nothing(config): ...
steps = [ExecutorStep(name, nothing, {}) for name in "abcd"]
experiment_dag("bounded", steps, max_concurrent=2)
experiment_dag("pooled", steps, pools={"cpu": "two"})
"""

SCHEDULE = """
from airflow.models.pool import Pool

with create_session() as session:
    Pool.create_or_update_pool("two", 2, "", True, session=session)
scheduler = SchedulerJobRunner(Job())
chosen = []
for dag_id, states in json.loads(sys.argv[2]):
    with create_session() as session:
        run = create_run(dag_id, f"run{len(chosen)}", session)
        for task in run.get_task_instances(session=session):
            task.state = states.get(task.task_id)
    with create_session() as session:
        queued = scheduler._executable_task_instances_to_queued(16, session=session)
        chosen.append(sorted(task.task_id for task in queued))
        session.rollback()
        session.execute(update(TaskInstance).values(state="success"))
report(chosen)
"""


def states(**active: str) -> dict[str, str]:
    return {"plan": "success", **dict.fromkeys("abcd", "scheduled"), **active}


@pytest.mark.slow
def test_airflow_scheduler_keeps_the_limits(tmp_path: Path) -> None:
    """Compare the tasks that the scheduler would start next in each DAG with these task states."""
    situations = [
        ("bounded", states(), ["a", "b"]),
        ("bounded", states(a="running"), ["b"]),
        ("bounded", states(a="running", b="queued"), []),
        ("bounded", states(a="deferred", b="deferred"), ["c", "d"]),  # so the steps of such a DAG do not defer
        ("bounded", states(a="running", plan="scheduled"), ["plan"]),  # a user cleared plan: it precedes the steps
        ("pooled", states(), ["a", "b"]),
        ("pooled", states(a="deferred"), ["b"]),
        ("pooled", states(a="deferred", b="running"), []),
        ("pooled", states(a="deferred", b="running", plan="scheduled"), ["plan"]),
    ]
    questions = json.dumps([(dag_id, of_tasks) for dag_id, of_tasks, _ in situations])
    assert run_in_airflow(tmp_path, DAGS, SCHEDULE, questions) == [started for _, _, started in situations]
