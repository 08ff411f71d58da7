"""A DAG has edges from ``plan`` only to the first steps; later steps wait for a new plan themselves."""

from __future__ import annotations

import json
import threading
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSkipException

from tests.operators.contexts import context_of
from tradewind import ExecutorStep, experiment_dag, on_airflow_worker, output_path_of, this_output_path
from tradewind.attempts.step_lease import StepLease
from tradewind.operators.plan import PlanOperator
from tradewind.operators.step import StepOperator
from tradewind.plans.plan import Decision, PlannedStep, chunk_key
from tradewind.records.attempts import AttemptOutcome
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import step_spec
from tradewind.tasks.context import ExperimentSettings
from tradewind.tasks.errors import PlanOutdatedError
from tradewind.tasks.plan_lines import push_skipped_tasks
from tradewind.tasks.step_try import Progress


@dataclass(frozen=True)
class Config:
    output_path: str
    sources: Any = ()


def work(config: Config) -> None: ...


def test_plan_is_directly_above_steps_without_inputs() -> None:
    top = ExecutorStep("top", work, Config(this_output_path()))
    left, right = (ExecutorStep(name, work, Config(this_output_path(), output_path_of(top))) for name in ("l", "r"))
    both = [output_path_of(left), output_path_of(right)]
    dag = experiment_dag("diamond", [ExecutorStep("end", work, Config(this_output_path(), both))])
    assert {task.task_id: task.upstream_task_ids for task in dag.tasks} == {
        "plan": set(),
        "top": {"plan"},
        "l": {"top"},
        "r": {"top"},
        "end": {"l", "r"},
    }


def test_step_accepting_failed_inputs_has_all_done_trigger() -> None:
    points = [ExecutorStep(name, work, Config(this_output_path())) for name in ("low", "high")]
    paths = [step.even_if_failed() for step in points]
    dag = experiment_dag("sweep", [ExecutorStep("table", work, Config(this_output_path(), paths))])
    table = dag.get_task("table")
    assert (table.trigger_rule, table.upstream_task_ids) == ("all_done", {"low", "high"})
    assert {dag.get_task(name).trigger_rule for name in ("low", "high")} == {"none_failed"}


class Run:
    """A task ``t`` without an edge from ``plan``, in a run whose plan task has these states in sequence."""

    def __init__(self, folder: Path, *plan_states: str | None) -> None:
        step = ExecutorStep("s", json.dumps, {}, resources=on_airflow_worker())
        self.folder = folder
        with DAG("d") as dag:
            self.task = StepOperator(task_id="t", step=step, settings=ExperimentSettings(prefix=str(folder)))
        self.context = context_of(dag)
        self.polls = 0
        self._plan_states = plan_states
        self._xcoms: dict[str, Any] = {}
        ti = self.context["ti"]
        ti.get_task_states = self._states
        ti.xcom_push = lambda *, key, value: self._xcoms.update({key: value})
        ti.xcom_pull = lambda *, task_ids, key="return_value": self._xcoms.get(key) if task_ids == "plan" else None

    def _states(self, *, dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, dict[str, str | None]]:
        assert (dag_id, task_ids, run_ids) == ("d", ["plan"], ["r"])
        state = self._plan_states[min(self.polls, len(self._plan_states) - 1)]
        self.polls += 1
        return {"r": {"plan": state}}

    def execute(self) -> Any:
        return self.task.execute(self.context)

    @property
    def step_lease(self) -> StepLease:
        return self.task._new_try(self.context, Progress()).step_lease

    def store_plan(self, version: str) -> None:
        """Store a plan in which the step must run in this version."""
        line = PlannedStep("t", "s", version, self.step_lease.path, Decision.RUN, "never ran")
        self._xcoms[chunk_key(0)] = {"steps": [line.to_json()]}

    @property
    def attempts(self) -> list[Path]:
        return list(self.folder.glob("s-*/.attempts/*.json"))


@pytest.mark.parametrize("state", [None, "scheduled", "queued", "up_for_retry", "restarting"])
def test_step_reschedules_while_plan_has_not_started(tmp_path: Path, state: str | None) -> None:
    run = Run(tmp_path, state)
    with pytest.raises(AirflowRescheduleException):
        run.execute()
    assert run.polls == 1 and not run.attempts


@pytest.mark.slow
@pytest.mark.parametrize("is_below_plan", [True, False])
def test_step_below_plan_or_in_tasks_test_does_not_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_below_plan: bool
) -> None:
    run = Run(tmp_path, None)
    if is_below_plan:
        run.task.upstream_task_ids.add("plan")
    else:
        monkeypatch.setenv("AIRFLOW_TEST_MODE", "True")
    run.execute()
    assert run.polls == 0 and len(run.attempts) == 1


@pytest.mark.parametrize("state", ["failed", "upstream_failed"])
def test_a_step_fails_where_the_new_plan_failed(tmp_path: Path, state: str) -> None:
    run = Run(tmp_path, state)
    with pytest.raises(PlanOutdatedError, match="'plan' failed.*Clear 'plan' and this task"):
        run.execute()
    assert not run.attempts


@pytest.mark.slow
def test_a_step_waits_for_the_end_of_a_plan_at_work(tmp_path: Path) -> None:
    run = Run(tmp_path, "running", "running", "success")
    run.execute()
    assert run.polls == 3 and len(run.attempts) == 1


@pytest.mark.slow
def test_step_pruned_by_plan_skips_itself_until_cleared(tmp_path: Path) -> None:
    run = Run(tmp_path, "success")
    push_skipped_tasks(run.context, ["t"])
    with pytest.raises(AirflowSkipException):
        run.execute()
    assert not run.attempts
    run.context["dag_run"].clear_number += 1  # a user clears the task
    run.execute()
    assert len(run.attempts) == 1


@pytest.mark.parametrize("state", ["scheduled", "up_for_reschedule", "running"])
@pytest.mark.parametrize("plans_try", [1, 2])
def test_step_started_before_its_skip_arrives_skips_itself(tmp_path: Path, state: str, plans_try: int) -> None:
    run = Run(tmp_path, "success")
    ti = SimpleNamespace(**{**vars(run.context["ti"]), "task_id": "plan", "try_number": plans_try})
    ti.get_task_states = lambda **_: {"r": {"t": state}}
    plan = PlanOperator(task_id="plan", steps={"t": run.task.step}, wanted=["t"])
    assert plan._not_active(["t"], {**run.context, "ti": ti}) == ([] if (state, plans_try) == ("running", 2) else ["t"])
    with pytest.raises(AirflowSkipException):  # Airflow reported the task as running
        run.execute()
    assert not run.attempts


@pytest.mark.slow
def test_step_waiting_in_worker_rechecks_newer_plan(tmp_path: Path) -> None:
    run = Run(tmp_path, "success")
    step, by = run.step_lease.step, {**run.step_lease.by, "run": "another"}
    run.store_plan(step.hash)
    other = StepLease(step, by)
    claimed = other.claim(None, lambda: step_spec(step, CodeFolder(tmp_path)))
    assert claimed is not None

    def replan_and_release() -> None:
        run.store_plan("ffffff")
        other.end_unstarted(claimed.attempt.job, AttemptOutcome.LOST)

    timer = threading.Timer(0.5, replan_and_release)
    timer.start()
    with pytest.raises(PlanOutdatedError, match="this run was planned with ffffff"):
        run.execute()
    timer.join()
    assert len(run.attempts) == 1, "only that of the other run"


def test_a_plan_reads_the_lock_of_the_project_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\n[dependency-groups]\ntalk = ["speaker"]\n')
    (tmp_path / "requirements.lock").write_text("speaker==1.0\n")
    steps = [ExecutorStep(name, work, Config(this_output_path()), pip_dependency_groups=["talk"]) for name in "abc"]
    dag = experiment_dag("d", steps, prefix=str(tmp_path / "out"))
    dag.fileloc = str(tmp_path / "dag.py")
    plan = dag.get_task("plan")
    assert isinstance(plan, PlanOperator)
    reads: list[str] = []
    monkeypatch.setattr(tomllib, "loads", lambda text, read=tomllib.loads: reads.append(text) or read(text))
    context = context_of(dag, "plan")
    plan.execute(context)
    assert len(reads) == 1
    assert len(list((tmp_path / "out" / "experiments").glob("d-*.json"))) == 1
