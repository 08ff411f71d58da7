"""Trigger form and concurrency limits of an experiment's DAG."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pendulum
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from tradewind import Cpu, ExecutorStep, Param, TpuSlice, experiment_dag
from tradewind.plans.selection import Selection, SelectionError
from tradewind.steps import ExperimentError, Gpu, on_airflow_worker, on_head_node
from tradewind.tasks.context import ExperimentSettings
from tradewind.tasks.params import FORM_SECTION, RUN_PARAMS, is_dry_run, selection_in, selection_of


@pytest.fixture(autouse=True)
def airflow_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))


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
    assert list(form) == [
        "lr",
        "run_only",
        "force",
        "force_downstream",
        "force_run_failed",
        "verify",
        "dry_run",
        "prefix",
    ]
    assert "section" not in form["lr"]["schema"]
    for name in RUN_PARAMS:
        field = form[name]
        assert field["schema"]["section"] == FORM_SECTION and field["schema"]["title"] and field["description"]
    assert {name: form[name]["default"] for name in RUN_PARAMS} == {
        "run_only": [],
        "force": [],
        "force_downstream": False,
        "force_run_failed": True,
        "verify": False,
        "dry_run": False,
    }


def test_the_arguments_of_the_dag_are_the_defaults_of_its_form() -> None:
    dag = make(run_only=["^raw"], force=("raw",), force_downstream=True, force_run_failed=False)
    expected = Selection(("^raw",), ("raw",), True, False)
    assert selection_in(dag.params.dump()) == expected
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert selection_in(stored.params.dump()) == expected


def test_the_form_takes_what_its_fields_send_and_nothing_else() -> None:
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
def test_a_param_of_ones_own_with_the_name_of_ours_is_refused(name: str) -> None:
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


def test_the_selection_of_a_run_is_what_its_form_says() -> None:
    chosen = context(run_only=["^train/", "", "  "], force=None, force_downstream=True, force_run_failed=False, lr=1)
    assert selection_of(chosen) == Selection(("^train/",), (), True, False)
    assert selection_of(context()) == Selection()
    with pytest.raises(SelectionError):
        selection_of(context(force="raw"))


def test_cleared_form_field_is_empty_despite_default() -> None:
    params = make(force=["raw"]).params
    params.update({"force": None})
    assert selection_in(params.dump()) == Selection()


def test_a_dry_run_is_one_whose_form_says_so() -> None:
    assert is_dry_run(context(dry_run=True))
    assert not is_dry_run(context(dry_run=False)) and not is_dry_run(context())


def test_our_params_are_no_values_of_the_run() -> None:
    dag = make(params={"lr": 0.1}, force=["raw"])
    values = ExperimentSettings().values_for(dag, dag.params.dump(), None, (None, None), pendulum.now())
    assert values.params == {"lr": 0.1}


@pytest.mark.parametrize(("length_h", "night"), [(0, "2026-03-07"), (23, "2026-03-08")])
def test_empty_data_interval_counts_as_none(length_h: int, night: str) -> None:
    """In New York, 02:00 does not exist on 8 March 2026, so a manual run of ``0 2 * * *`` gets an empty interval."""
    settings, start = ExperimentSettings(timezone="America/New_York"), pendulum.datetime(2026, 3, 8, 7)
    interval = start, start.add(hours=length_h)
    values = settings.values_for(make(), {}, None, interval, pendulum.datetime(2026, 3, 8, 16))
    assert str(values.night) == night
    assert (values.data_interval_start is None) == (length_h == 0)


# ---- concurrency


def test_max_concurrent_counts_running_steps_without_deferral(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    dag = make(step("a"), step("b"), max_concurrent=1, default_args={"deferrable": True})
    assert dag.max_active_tasks == 1
    assert [dag.get_task(name).deferrable for name in ("a", "b")] == [False, False]


def test_without_max_concurrent_the_deployment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    before = make().max_active_tasks
    assert before > 1
    assert make(step("a"), default_args={"deferrable": True}).get_task("a").deferrable
    assert make(max_active_tasks=3).max_active_tasks == 3


def test_a_max_concurrent_that_bounds_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="max_concurrent must be a positive integer, got 0"):
        make(max_concurrent=0)
    with pytest.raises(ExperimentError, match="max_concurrent or max_active_tasks, not both"):
        make(max_concurrent=2, max_active_tasks=2)


def test_executor_main_bounds_steps_in_the_same_way(tmp_path: Path) -> None:
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


def test_each_step_goes_to_the_pool_of_what_it_runs_on() -> None:
    dag = make(
        step("nothing_said"),
        step("cpu", resources=Cpu(2)),
        step("gpu", resources=Gpu()),
        step("pooled", resources=TpuSlice("v4-16")),
        step("unpooled", resources=TpuSlice("v4-8")),
        step("head", resources=on_head_node()),
        step("worker", resources=on_airflow_worker()),
        pools={"v4-16": "tpu_v4_16", "v6e-8": "not_used", "cpu": "cpus", "gpu": "gpus"},
    )
    assert {task.task_id: task.pool for task in dag.tasks} == {
        "plan": "default_pool",
        "nothing_said": "cpus",
        "cpu": "cpus",
        "gpu": "gpus",
        "pooled": "tpu_v4_16",
        "unpooled": "default_pool",
        "head": "default_pool",
        "worker": "default_pool",
    }


def test_a_pool_for_something_unknown_is_refused() -> None:
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
import json, sys
import pendulum
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.dag import DagModel
from airflow.models.dagbag import DBDagBag
from airflow.models.dagbundle import DagBundleModel
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import update

initdb()
with create_session() as session:
    session.add(DagBundleModel(name="here"))
    Pool.create_or_update_pool("two", 2, "", True, session=session)
bag = DagBag(sys.argv[1], bundle_path=sys.argv[1], bundle_name="here")
sync_bag_to_db(bag, "here", None)
scheduler = SchedulerJobRunner(Job())
chosen = []
for dag_id, states in json.loads(sys.argv[2]):
    with create_session() as session:
        session.execute(update(DagModel).values(is_paused=False))
        run = DBDagBag().get_latest_version_of_dag(dag_id, session=session).create_dagrun(
            run_id=f"run{len(chosen)}", run_after=pendulum.now(), run_type=DagRunType.MANUAL, session=session,
            triggered_by=DagRunTriggeredByType.TEST, state=DagRunState.RUNNING,
        )
        for task in run.get_task_instances(session=session):
            task.state = states.get(task.task_id)
    with create_session() as session:
        found = scheduler._executable_task_instances_to_queued(16, session=session)
        chosen.append(sorted(task.task_id for task in found))
        session.rollback()
        session.execute(update(TaskInstance).values(state="success"))
print("RESULT" + json.dumps(chosen))
"""


def scheduled(tmp_path: Path, *situations: tuple[str, dict[str, str]]) -> list[list[str]]:
    """Return the tasks that the scheduler would start next in each situation: a DAG and its task states."""
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "made.py").write_text(DAGS)
    env = dict(os.environ, AIRFLOW_HOME=str(tmp_path), AIRFLOW__CORE__LOAD_EXAMPLES="False")
    command = [sys.executable, "-c", SCHEDULE, str(dags), json.dumps(situations)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    result = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert result, done.stdout + done.stderr
    return list(json.loads(result[0].removeprefix("RESULT")))


def states(**at_work: str) -> dict[str, str]:
    return {"plan": "success", **dict.fromkeys("abcd", "scheduled"), **at_work}


@pytest.mark.slow
def test_airflows_own_scheduler_keeps_the_bounds(tmp_path: Path) -> None:
    assert scheduled(
        tmp_path,
        ("bounded", states()),
        ("bounded", states(a="running")),
        ("bounded", states(a="running", b="queued")),
        ("bounded", states(a="deferred", b="deferred")),  # the reason why the steps of such a DAG do not defer
        ("bounded", states(a="running", plan="scheduled")),  # a user cleared plan: it precedes the steps
        ("pooled", states()),
        ("pooled", states(a="deferred")),
        ("pooled", states(a="deferred", b="running")),
        ("pooled", states(a="deferred", b="running", plan="scheduled")),
    ) == [["a", "b"], ["b"], [], ["c", "d"], ["plan"], ["a", "b"], ["b"], [], ["plan"]]


# ---- serialized DAGs


def test_a_dag_with_all_options_is_the_same_each_time() -> None:
    def stored() -> str:
        dag = make(step("a"), step("b"), max_concurrent=2, pools={"cpu": "c"}, asset_events_of_reused=True, force=["a"])
        return json.dumps(DagSerialization.to_dict(dag), sort_keys=True, default=str)

    assert stored() == stored()


def test_what_may_cross_regions_is_known_to_the_plan() -> None:
    plan = make(allow_cross_region=["raw", "gs://bucket/shared"]).get_task("plan")
    assert plan.allow_cross_region == ("raw", "gs://bucket/shared")
