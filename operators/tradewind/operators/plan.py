"""The first task of a run: decide what runs, and skip the rest in one call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import DownstreamTasksSkipped

from tradewind.deployment.fleet import check_cluster_access
from tradewind.plans.plan import Decision, Plan, chunks
from tradewind.plans.planning import plan_now, read_outputs
from tradewind.plans.step_history import version_chunks
from tradewind.plans.table import plan_table
from tradewind.ray_jobs.dependencies import Environments
from tradewind.records.info_files import step_info, write_experiment_info
from tradewind.serialization.references import CodeFolder, function_name
from tradewind.steps import ExecutorStep, ResolvedExperiment
from tradewind.tasks.address import states_now
from tradewind.tasks.assets import emit_reused
from tradewind.tasks.cluster_slices import refuse_missing_slice_types
from tradewind.tasks.code import code_folder
from tradewind.tasks.context import ExperimentSettings, PlacedExperiment
from tradewind.tasks.errors import failing_without_retry, translated_store_errors
from tradewind.tasks.group_values import plain_value
from tradewind.tasks.params import is_dry_run, is_verified, selection_of
from tradewind.tasks.plan_lines import push_plan, push_skipped_tasks, push_values
from tradewind.tasks.regions import refuse_cross_region_reads
from tradewind.tasks.step_job import claimed_spec

_ACTIVE = frozenset({"running", "deferred", "queued"})
_TO_DO = frozenset({Decision.RUN, Decision.WAIT, Decision.BLOCKED})
"""Decisions whose tasks are not skipped: they make the output, wait for it, or report why it is blocked."""


class PlanOperator(BaseOperator):
    """Resolves the run's steps, reads their records, and skips every step that need not run.

    The plan is logged as a table and pushed as XCom. All input errors that are detectable now are raised here, before
    any submission.

    Args:
        steps: Task id → step, for every task of the experiment, in execution order.
        wanted: The task ids whose outputs are wanted; other tasks run only if one of these requires them.
        values: Name → value of the run, for ``run_param(name)`` in the steps' configs (templated).
        settings: Settings that the experiment's tasks share.
        allow_cross_region: Names of steps that may read from other regions, and paths below which any step may.
        emits_reused: Emit asset events for reused outputs.
    """

    ui_color = "#d8e2dc"
    template_fields: Sequence[str] = ("values",)

    def __init__(
        self,
        *,
        steps: Mapping[str, ExecutorStep],
        wanted: Collection[str],
        values: Mapping[str, Any] | None = None,
        settings: ExperimentSettings | None = None,
        allow_cross_region: Sequence[str] = (),
        emits_reused: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.steps = dict(steps)
        self.wanted = frozenset(wanted)
        self.values = dict(values or {})
        self.settings = settings or ExperimentSettings()
        self.allow_cross_region = tuple(allow_cross_region)
        self.emits_reused = emits_reused

    def execute(self, context: Context) -> None:
        """Plan the run, then skip what need not run."""
        with failing_without_retry(), translated_store_errors("The plan"):
            group = self.settings.group
            values = {name: plain_value(f"Group {group!r}", name, value) for name, value in self.values.items()}
            placed = self.settings.resolve(list(self.steps.values()), self.settings.values_of(context, values))
            experiment = placed.experiment
            plan = self._plan(placed, context)
            self.log.info("Plan for outputs below %s\n\n%s\n", plan.prefix, plan_table(plan))
            has_work = any(step.decision in _TO_DO for step in plan.steps)
            if group:
                push_values(context, values)
            versions = version_chunks(plan, {task_id: experiment.of(step) for task_id, step in self.steps.items()})
            push_plan(context, plan, versions | (chunks(plan) if has_work else {}))
            skipped = self._skipped(plan, experiment, context)
        if self.emits_reused and not is_dry_run(context, group):
            emit_reused(context, plan.steps)
        if to_skip := self._not_active(skipped, context):
            raise DownstreamTasksSkipped(tasks=to_skip)

    def _plan(self, placed: PlacedExperiment, context: Context) -> Plan:
        experiment = placed.experiment
        tasks = [(task_id, experiment.of(step)) for task_id, step in self.steps.items()]
        outputs = read_outputs(
            [step.output_path for _, step in tasks], verify=is_verified(context, self.settings.group)
        )
        selection = selection_of(context, self.settings.group)
        return plan_now(experiment.prefix, tasks, self.wanted, outputs, selection, roots=placed.roots)

    def _skipped(self, plan: Plan, experiment: ResolvedExperiment, context: Context) -> list[str]:
        """Return the tasks without work under this plan; raise if the plan cannot be executed."""
        if is_dry_run(context, self.settings.group):
            self.log.info("Dry run: no step runs.")
            return [step.task_id for step in plan.steps] + self.settings.outputs_task_ids
        code = code_folder(context["dag"])
        to_run = [experiment.of(self.steps[planned.task_id]) for planned in plan.decided(Decision.RUN)]
        environments = Environments(code)
        for step in to_run:
            claimed_spec(step, code, environments)
        clusters = {self.settings.cluster_of(step.step) for step in to_run}
        check_cluster_access(sorted(clusters), self.owner, f"Task {self.task_id!r}")
        refuse_missing_slice_types(to_run, self.settings.cluster_of)
        refuse_cross_region_reads(to_run, self.settings.cluster_of, self.allow_cross_region)
        if to_run:
            folder = CodeFolder(code)
            infos = [step_info(step, function_name(step.step.fn, folder)) for step in experiment.steps]
            file = context["dag"].relative_fileloc or context["dag"].fileloc
            write_experiment_info(plan.prefix, context["dag"].dag_id, infos, file, folder.commit())
        return [step.task_id for step in plan.steps if step.decision not in _TO_DO]

    def _not_active(self, task_ids: list[str], context: Context) -> list[str]:
        """Exclude running tasks from the skip, when the plan is made again while steps run.

        A task that waits for this plan may start before Airflow's skip, which spares it too. That includes a first
        plan's tasks, if a user marks what the step reads or another task skips it.
        """
        if below_others := [task_id for task_id in task_ids if task_id not in self.downstream_task_ids]:
            push_skipped_tasks(context, below_others)
        if not task_ids or context["ti"].try_number == 1:
            return task_ids
        state_of = states_now(context, task_ids)
        return [task_id for task_id in task_ids if state_of.get(task_id) not in _ACTIVE]
