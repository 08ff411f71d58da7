"""The first task of a run: decides what will run and skips the rest in one call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import DownstreamTasksSkipped

from tradewind.operators.code import code_folder
from tradewind.operators.errors import failing_at_once
from tradewind.operators.run_context import ExperimentSettings
from tradewind.operators.step_job import claimed_spec
from tradewind.plans.plan import Decision, Plan, make_plan
from tradewind.plans.table import plan_table
from tradewind.records.status import read_statuses
from tradewind.steps import ExecutorStep, ResolvedExperiment, resolve

_AT_WORK = frozenset({"running", "deferred", "queued"})


class PlanOperator(BaseOperator):
    """Resolves the run's steps, reads their records, and skips every step that need not run.

    The plan is logged as a table and pushed as XCom. All bad input that can be known by now is refused here, before
    anything is submitted.

    Args:
        steps: Task id → step, for every task of the experiment, in execution order.
        wanted: The task ids whose outputs the experiment is for; the others run only if one of these needs them.
        settings: What the experiment's tasks share.
    """

    ui_color = "#d8e2dc"
    template_fields: Sequence[str] = ()

    def __init__(
        self,
        *,
        steps: Mapping[str, ExecutorStep],
        wanted: Collection[str],
        settings: ExperimentSettings | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.steps = dict(steps)
        self.wanted = frozenset(wanted)
        self.settings = settings or ExperimentSettings()

    def execute(self, context: Context) -> None:
        """Plan the run; ends by skipping what need not run."""
        with failing_at_once():
            plan = self._plan(context)
        self.log.info("Plan for outputs below %s\n\n%s\n", plan.prefix, plan_table(plan))
        context["ti"].xcom_push(key="return_value", value=plan.to_json())
        not_run = [step.task_id for step in plan.steps if step.decision is not Decision.RUN]
        if to_skip := self._not_at_work(not_run, context):
            raise DownstreamTasksSkipped(tasks=to_skip)

    def _plan(self, context: Context) -> Plan:
        values = self.settings.values_of(context)
        prefix = self.settings.prefix_of(values)
        experiment = resolve(list(self.steps.values()), prefix, values)
        tasks = [(task_id, experiment.of(step)) for task_id, step in self.steps.items()]
        plan = make_plan(prefix, tasks, self.wanted, read_statuses)
        self._check_can_run(plan, experiment, code_folder(context["dag"]))
        return plan

    def _check_can_run(self, plan: Plan, experiment: ResolvedExperiment, code: Path) -> None:
        for planned in plan.decided(Decision.RUN):
            claimed_spec(experiment.of(self.steps[planned.task_id]), code)

    def _not_at_work(self, task_ids: list[str], context: Context) -> list[str]:
        """When the plan is made again while steps run: leave those alone that are at work."""
        ti: Any = context["ti"]
        if not task_ids or ti.try_number == 1:
            return task_ids
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=task_ids, run_ids=[ti.run_id])
        state_of = states.get(ti.run_id, {})
        return [task_id for task_id in task_ids if state_of.get(task_id) not in _AT_WORK]
