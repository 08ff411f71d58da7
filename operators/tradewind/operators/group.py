"""A group of steps in a user's own DAG: plan first, a task per step, and a last task that hands the paths on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn, cast

import attrs
from airflow.sdk import BaseOperator, Context, TaskGroup
from airflow.sdk.definitions.xcom_arg import PlainXComArg, XComArg
from airflow.sdk.exceptions import AirflowRescheduleException, DuplicateTaskIdFound

from tradewind.deployment.task_instances import WAITING_STATES
from tradewind.operators.experiment import DEFAULTS, DagOptions, check_timezone, outline_of
from tradewind.plans.plan import Decision
from tradewind.steps import ExecutorStep, ExperimentError, InputName, UnknownRunValueError, truncated_repr
from tradewind.tasks.address import states_now
from tradewind.tasks.context import OUTPUTS_TASK_ID, PLAN_TASK_ID, ExperimentSettings
from tradewind.tasks.errors import PlanOutdatedError
from tradewind.tasks.group_values import check_values
from tradewind.tasks.params import add_run_params, is_builtin_param
from tradewind.tasks.plan_lines import whole_plan
from tradewind.tasks.plan_wait import RESCHEDULE_S, planned_values, skip_if_not_planned

MAX_SHOWN: Final = 5
"""Tasks in a message."""
_ENDED_WELL: Final = ("success", "skipped")


class OutputsOperator(BaseOperator):
    """Hands the output paths of a group's steps on; succeeds also when all outputs are reused.

    XCom: step name → output path, of the steps that have an output.

    Args:
        names: Task id → name in the XCom, for every step of the group.
        plan_task_id: The task whose XCom holds the group's plan.
    """

    ui_color = "#d8e2dc"
    template_fields: Sequence[str] = ()

    def __init__(self, *, names: Mapping[str, str], plan_task_id: str = PLAN_TASK_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.names = dict(names)
        self.plan_task_id = plan_task_id

    @property
    def output(self) -> GroupOutput:
        """The XCom of this task."""
        return GroupOutput(self, tasks={name: task_id for task_id, name in self.names.items()})

    def execute(self, context: Context) -> dict[str, str]:
        """Return the paths of the outputs that exist."""
        planned_values(context, self.plan_task_id)  # the plan exists, else this task is skipped or waits for it
        skip_if_not_planned(context, self.plan_task_id)
        states, steps = states_now(context, list(self.names)), whole_plan(context, self.plan_task_id).steps
        if any(states.get(step.task_id) in WAITING_STATES for step in steps):  # those that have no edge to this task
            raise AirflowRescheduleException(datetime.now(UTC) + timedelta(seconds=RESCHEDULE_S))
        paths: dict[str, str] = {}
        for step in steps:
            state = states.get(step.task_id) or "removed"
            is_reused = step.decision is Decision.REUSE and state in ("skipped", "removed")
            if state == "success" or is_reused:
                paths[self.names[step.task_id]] = step.output_path
            else:
                self.log.info("Step %r has no output in this run: its task is %s.", step.name, state)
        return paths


@attrs.define(repr=False)
class GroupOutput(PlainXComArg):
    """The output paths of a group as the argument of another task; ``output["step"]`` is one path."""

    tasks: Mapping[str, str] = attrs.field(factory=dict)
    """Name of a step → its task id."""
    step: str | None = None

    def __getitem__(self, item: str) -> XComArg:
        """Return the path of the step of this name.

        Raises:
            ExperimentError: The group has no such step.
        """
        if item not in self.tasks:
            raise ExperimentError(
                f"Task {self.operator.task_id!r} hands on no output {truncated_repr(item)}, only those of "
                f"{', '.join(map(repr, self.tasks))}."
            )
        return attrs.evolve(self, step=item)

    def __str__(self) -> str:
        """Return a template of this value, for a text with it."""
        return super().__str__() if self.step is None else f"{super().__str__()[:-2].rstrip()}[{self.step!r}] }}}}"

    def resolve(self, context: Mapping[str, Any]) -> Any:
        """Return the paths, or the path of one step, in the run.

        Raises:
            PlanOutdatedError: The group or the step has no output in this run.
        """
        paths = super().resolve(context)
        if self.step is None and isinstance(paths, dict):
            return paths
        if isinstance(paths, dict) and self.step in paths:
            return paths[self.step]
        what = "The steps have" if self.step is None else f"Step {self.step!r} has"
        raise PlanOutdatedError(f"{what} no output in this run, because {self._why_absent(context)}.")

    def _why_absent(self, context: Mapping[str, Any]) -> str:
        """Return the states of the step's task, of the tasks that failed, or else of the last task."""
        states = states_now(cast(Context, context), [*self.tasks.values(), self.operator.task_id])
        own = [] if self.step is None else [self.tasks[self.step]]
        failed = [task_id for task_id in self.tasks.values() if states.get(task_id) == "failed"]
        bad = [
            f"task {task_id!r} is {state}"
            for task_id in dict.fromkeys([*own, *failed, self.operator.task_id])
            if (state := states.get(task_id)) not in _ENDED_WELL
        ]
        return ", ".join(bad[:MAX_SHOWN]) or "the plan left it out: name it in the group's steps to have it in each run"


@attrs.define(repr=False)
class ExperimentGroup(TaskGroup):
    """The task group of an experiment; ``group.output`` has the output paths of its steps."""

    last: OutputsOperator = attrs.field(init=False)

    @property
    def output(self) -> GroupOutput:
        """Step name → output path, as an argument of another task."""
        return self.last.output

    def expand(self, **_: Any) -> NoReturn:
        """Refuse a mapped group."""
        raise _mapped(self.group_id)


def build_group(
    group_id: str,
    steps: Sequence[ExecutorStep | InputName],
    *,
    values: Mapping[str, Any],
    timezone: str | None,
    settings: ExperimentSettings,
    options: DagOptions,
    default_args: Mapping[str, Any],
) -> ExperimentGroup:
    """Build the task group of an experiment in Airflow's current DAG; see ``tradewind.experiment_group``."""
    try:
        group = ExperimentGroup(group_id)
    except DuplicateTaskIdFound:
        raise ExperimentError(f"This DAG has a group or task {group_id!r} already: give this one another id.") from None
    except RuntimeError:
        raise ExperimentError(f"Group {group_id!r} is in no DAG: call experiment_group in `with DAG(...)`.") from None
    except ValueError as error:
        raise ExperimentError(f"Group {truncated_repr(group_id)} cannot have this id: {error}.") from None
    group_id = str(group.group_id)
    where = f"DAG {group.dag.dag_id!r}: group {group_id!r}"
    if next(iter(group.iter_mapped_task_groups()), None) is not None:
        raise _mapped(group_id)
    if timezone is None:  # the schedule's, which may differ from the DAG's
        of_dag = getattr(group.dag.timetable, "timezone", None) or group.dag.timezone
        timezone = of_dag if isinstance(of_dag, str) else of_dag.name
    check_timezone(where, timezone)
    if not isinstance(default_args, Mapping):
        raise ExperimentError(f"{where}: default_args must be a dictionary, but is {truncated_repr(default_args)}.")
    params = frozenset(name for name in group.dag.params if not is_builtin_param(group.dag.params.get_param(name)))
    check_values(where, values, params)
    settings = replace(settings, timezone=timezone, group=group_id, value_names=tuple(values))
    try:
        outline = outline_of(where, steps, params | values.keys(), settings, options)
    except UnknownRunValueError as error:
        raise ExperimentError(f"{where}: {error} Give it as a value of the group, or as a param of the DAG.") from None
    group.default_args = DEFAULTS | group.dag.default_args | group.default_args | dict(default_args)
    with group:
        tasks = outline.add_tasks(values)
        names = dict(zip((task.task_id for task in tasks), outline.output_names(), strict=True))
        group.last = OutputsOperator(
            task_id=OUTPUTS_TASK_ID,
            names=names,
            plan_task_id=settings.full_id(PLAN_TASK_ID),
            trigger_rule="none_failed",
            doc_md="Hands the output paths of the steps on, made or reused.",
        )
        # All steps, not only the last ones: the plan may skip those at once, while others run.
        group.last.set_upstream([task for task in tasks if not _may_fail(task)])
    add_run_params(group.dag, options.selection, group_id)
    return group


def _may_fail(task: BaseOperator) -> bool:
    """Whether the group succeeds without this step: only steps that read it ``even_if_failed`` read it."""
    readers = [reader.trigger_rule for reader in task.downstream_list]
    return bool(readers) and set(readers) == {"all_done"}


def _mapped(group_id: str | None) -> ExperimentError:
    return ExperimentError(
        f"Group {group_id!r} is mapped: its steps have versions, so a DAG file must name them all. Give one group the "
        "list as a value, or make a group per value in a loop."
    )
