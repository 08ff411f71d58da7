"""Build an Airflow DAG from steps: one task per step, edges from config references, ``plan`` first."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pendulum
from airflow.sdk import DAG, CronDataIntervalTimetable, conf
from airflow.sdk import Param as AirflowParam

from tradewind.cloud_tpu.slice_types import UnknownSliceTypeError, slice_type
from tradewind.operators.plan import PlanOperator
from tradewind.operators.step import StepOperator
from tradewind.plans.output_locations import check_given_places, check_no_overlap
from tradewind.plans.selection import Selection
from tradewind.steps import (
    Cpu,
    ExecutorStep,
    ExperimentError,
    Gpu,
    Hosts,
    InputName,
    Param,
    ParseTimeValues,
    ResolvedStep,
    Resources,
    TpuSlice,
    check_bounded,
    resolve,
    truncated_repr,
    wanted_steps,
)
from tradewind.steps.run_values import param_default
from tradewind.tasks.assets import declared_outlets
from tradewind.tasks.context import DAG_TAG, OUTPUTS_TASK_ID, PLAN_TASK_ID, ExperimentSettings
from tradewind.tasks.jobs.placement import check_function_place, check_slice_types
from tradewind.tasks.params import PREFIX, add_run_params

_PARSE_TIME_PREFIX = "prefix:"
DEFAULTS = {"retries": 3, "retry_delay": timedelta(seconds=10)}
_MAX_TASK_ID = 240
"""Of Airflow's 250 characters; the others are for a number."""
_AT_ONCE = ("@once", "@continuous")
"""Schedules that are no cron texts. Their first run is due now, or at the start date, if there is one."""
_CPU_POOL, _GPU_POOL = "cpu", "gpu"


@dataclass(frozen=True)
class DagOptions:
    """Options of an experiment's DAG besides its steps; see the arguments of ``tradewind.experiment_dag``."""

    selection: Selection = Selection()
    max_concurrent: int | None = None
    pools: Mapping[str, str] = field(default_factory=dict)
    asset_events_of_reused: bool = False
    allow_cross_region: tuple[str, ...] = ()


def build_dag(
    dag_id: str,
    steps: Sequence[ExecutorStep | InputName],
    *,
    schedule: Any,
    params: Mapping[str, Any],
    settings: ExperimentSettings,
    dag_arguments: Mapping[str, Any],
    options: DagOptions = DagOptions(),
) -> DAG:
    """Build the DAG of an experiment; see ``tradewind.experiment_dag``."""
    where = f"DAG {truncated_repr(dag_id)}"
    check_timezone(where, settings.timezone)
    _check_params(where, params)
    check_bounded(dict(dag_arguments), f"{where}: its arguments", is_json=True)
    default = param_default(params.get(PREFIX))
    settings = replace(settings, default_param=default if isinstance(default, str) else None)
    outline = outline_of(where, steps, frozenset(params), settings, options)
    with DAG(
        dag_id,
        schedule=(  # a cron text means data intervals: a night's data ends when its run starts
            CronDataIntervalTimetable(schedule, timezone=settings.timezone)
            if isinstance(schedule, str) and schedule not in _AT_ONCE
            else schedule
        ),
        params={name: _airflow_param(param) for name, param in params.items()},
        **_dag_arguments(dag_id, schedule, dag_arguments, settings, options.max_concurrent),
    ) as dag:
        outline.add_tasks()
    add_run_params(dag, options.selection)
    return dag


@dataclass(frozen=True)
class Outline:
    """The checked steps of an experiment, whose tasks are still to be made.

    Attributes:
        task_ids: Step → task id within the group or DAG. It has also steps that are referenced without waiting: a run
            may select them.
        wanted: The task ids of the wanted steps.
    """

    task_ids: Mapping[ResolvedStep, str]
    wanted: frozenset[str]
    settings: ExperimentSettings
    options: DagOptions

    def add_tasks(self, values: Mapping[str, Any] | None = None) -> list[StepOperator]:
        """Make the plan's task and the steps' tasks in Airflow's current DAG and group; return the steps' tasks."""
        settings, options, full_id = self.settings, self.options, self.settings.full_id
        plan = PlanOperator(
            task_id=PLAN_TASK_ID,
            steps={full_id(task_id): resolved.step for resolved, task_id in self.task_ids.items()},
            wanted=set(map(full_id, self.wanted)),
            values=values,
            settings=settings,
            allow_cross_region=options.allow_cross_region,
            doc_md="Decides which steps run and which outputs are reused. The log shows the plan as a table.",
            emits_reused=options.asset_events_of_reused,
        )
        plan.dag.tags.add(DAG_TAG)
        return _add_step_tasks(plan, self.task_ids, settings, options)

    def output_names(self) -> list[str]:
        """Return a name per step's output: the step's own, numbered like its task if it is repeated."""
        counts = Counter(step.name for step in self.task_ids)
        return [step.name if counts[step.name] == 1 else task_id for step, task_id in self.task_ids.items()]


def outline_of(
    where: str,
    steps: Sequence[ExecutorStep | InputName],
    param_names: frozenset[str],
    settings: ExperimentSettings,
    options: DagOptions,
) -> Outline:
    """Check the steps of an experiment; ``where`` names it in messages.

    Raises:
        ExperimentError: They make no valid experiment.
    """
    _check_pools(where, options.pools)
    resolved = resolve(steps, _PARSE_TIME_PREFIX, ParseTimeValues(param_names))
    wanted = wanted_steps(steps)
    if not wanted:
        raise ExperimentError(f"{where} has no steps.")
    check_given_places(each.step for each in resolved.steps)
    check_no_overlap(resolved.steps)
    check_slice_types(each.step for each in resolved.steps)
    for each in resolved.steps:
        check_function_place(each.step)
        check_bounded(each.step.description, f"Step {each.name!r}: description", is_json=True)
    clusters = tuple(dict.fromkeys(each.step.cluster for each in resolved.steps if each.step.cluster))
    settings = replace(settings, clusters=clusters)
    task_ids = _task_ids(resolved.steps, settings.group)
    return Outline(task_ids, frozenset(task_ids[resolved.of(step)] for step in wanted), settings, options)


def check_timezone(where: str, timezone: str) -> None:
    if not isinstance(timezone, str):
        raise ExperimentError(f"timezone must be text, but is {truncated_repr(timezone)}.")
    try:
        pendulum.timezone(timezone)
    except (ValueError, OSError):  # OSError: a name that no file can have
        raise ExperimentError(
            f"{where}: there is no time zone {truncated_repr(timezone)}. Use a name like 'Europe/Berlin'."
        ) from None


def _check_params(where: str, params: Mapping[str, Any]) -> None:
    """Refuse defaults that Airflow would walk forever, or show whole in its own error."""
    for name, param in params.items():
        default, schema = param_default(param), getattr(param, "schema", None)
        of_param = f"{where}: param {truncated_repr(name)}"
        check_bounded({"name": name, "description": getattr(param, "description", None)}, of_param, is_json=True)
        for what, value in (("", default), (" (schema)", schema)):
            check_bounded(value, of_param + what, is_json=True)
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                raise ExperimentError(
                    f"{of_param}{what or ' has the default'} {truncated_repr(value)}, which JSON cannot represent. "
                    "Use text, a number, or a list or dictionary of them."
                ) from None


def _dag_arguments(
    dag_id: str, schedule: Any, given: Mapping[str, Any], settings: ExperimentSettings, max_concurrent: int | None
) -> dict[str, Any]:
    arguments = dict(given)
    arguments["default_args"] = DEFAULTS | (arguments.get("default_args") or {})
    for name in ("start_date", "end_date"):
        if not isinstance(date := arguments.get(name), datetime | None):
            raise ExperimentError(
                f"DAG {dag_id!r}: {name} is {truncated_repr(date)}, which is no datetime: give datetime(2026, 1, 1)."
            )
    if "start_date" not in arguments and "start_date" not in arguments["default_args"]:
        if schedule is not None and arguments.get("catchup", conf.getboolean("scheduler", "catchup_by_default")):
            raise ExperimentError(
                f"DAG {dag_id!r}: catchup needs a start_date, at which the first run starts: give "
                "start_date=datetime(2026, 1, 1), or catchup=False."
            )
        if schedule not in _AT_ONCE:  # Airflow runs no task before it, and any date may be backfilled
            arguments["start_date"] = pendulum.datetime(1970, 1, 1, tz=settings.timezone)
    if schedule == "@continuous":
        arguments.setdefault("max_active_runs", 1)
    if max_concurrent is not None:
        if "max_active_tasks" in arguments:
            raise ExperimentError(f"DAG {dag_id!r}: give max_concurrent or max_active_tasks, not both.")
        arguments["max_active_tasks"] = max_concurrent
    return arguments


def _add_step_tasks(
    plan: PlanOperator, task_ids: Mapping[ResolvedStep, str], settings: ExperimentSettings, options: DagOptions
) -> list[StepOperator]:
    tasks: dict[ResolvedStep, StepOperator] = {}
    for index, (resolved, task_id) in enumerate(task_ids.items()):
        task = StepOperator(
            task_id=task_id,
            step=resolved.step,
            settings=settings,
            plan_task_id=plan.task_id,
            index=index,
            trigger_rule="all_done" if resolved.dispensable else "none_failed",
            doc_md=resolved.step.description,
            outlets=declared_outlets(resolved.name, len(task_ids)),
            **_bounds(resolved.step.resources, options),
        )
        tasks[resolved] = task
        upstream = list({id(each): each for each in (tasks[needed] for needed in resolved.dependencies)}.values())
        task.set_upstream(upstream or plan)  # the plan skips any task of the run, with or without an edge
    return list(tasks.values())


def _bounds(resources: Resources | None, options: DagOptions) -> dict[str, Any]:
    """Return the limits on concurrent tasks of this kind.

    Airflow's ``max_active_tasks`` counts a run's running and queued tasks, not deferred ones. For a strict limit, a
    step's task follows its job in the worker. A pool counts deferred tasks if it was created so.
    """
    bounds: dict[str, Any] = {}
    if options.max_concurrent is not None:
        bounds["deferrable"] = False
    if (pool := options.pools.get(_pool_key(resources))) is not None:
        bounds["pool"] = pool
    return bounds


def _pool_key(resources: Resources | None) -> str:
    match resources:
        case None | Cpu():
            return _CPU_POOL
        case Gpu():
            return _GPU_POOL
        case Hosts(gpus=gpus):
            return _GPU_POOL if gpus else _CPU_POOL
        case TpuSlice(name):
            return name
    return ""  # the head node and the Airflow worker are for trivial steps


def _check_pools(where: str, pools: Mapping[str, str]) -> None:
    if not isinstance(pools, Mapping) or not all(isinstance(text, str) for pair in pools.items() for text in pair):
        raise ExperimentError(f"{where}: pools must map text to text, such as {{'v4-8': 'my-pool'}}.")
    for key in pools.keys() - {_CPU_POOL, _GPU_POOL}:
        try:
            slice_type(key)
        except UnknownSliceTypeError as error:
            raise ExperimentError(
                f"{where}: pools are for slice types, {_CPU_POOL!r} and {_GPU_POOL!r}: {error}"
            ) from error


def _task_ids(steps: Sequence[ResolvedStep], group: str) -> dict[ResolvedStep, str]:
    """Assign a task ID per step: its name without what Airflow refuses, numbered if repeated."""
    task_ids: dict[ResolvedStep, str] = {}
    taken = {PLAN_TASK_ID, OUTPUTS_TASK_ID} if group else {PLAN_TASK_ID}
    length = _MAX_TASK_ID - len(group)
    numbers: Counter[str] = Counter()
    for step in steps:
        base = re.sub(r"[^\w.-]+", "_", step.name).strip("_")[:length] or "step"
        task_id = base
        while task_id in taken:
            numbers[base] += 1
            task_id = f"{base}__{numbers[base] + 1}"
        taken.add(task_id)
        task_ids[step] = task_id
    return task_ids


def _airflow_param(param: Any) -> Any:
    return (
        AirflowParam(param.default, description=param.description, **param.schema)
        if isinstance(param, Param)
        else param
    )
