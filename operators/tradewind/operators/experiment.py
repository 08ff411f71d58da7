"""Build an Airflow DAG from steps: one task per step, edges from config references, ``plan`` first."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
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
from tradewind.tasks.assets import step_asset
from tradewind.tasks.context import ExperimentSettings
from tradewind.tasks.jobs.placement import check_function_place, check_slice_types
from tradewind.tasks.params import PREFIX, add_run_params

PLAN_TASK_ID = "plan"
_PARSE_TIME_PREFIX = "prefix:"
_DEFAULTS = {"retries": 3, "retry_delay": timedelta(seconds=10)}
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
    _check_timezone(dag_id, settings.timezone)
    _check_params(dag_id, params)
    check_bounded(dict(dag_arguments), f"DAG {dag_id!r}: its arguments", is_json=True)
    _check_pools(dag_id, options.pools)
    outline = resolve(steps, _PARSE_TIME_PREFIX, ParseTimeValues(frozenset(params)))
    wanted = wanted_steps(steps)
    if not wanted:
        raise ExperimentError(f"DAG {dag_id!r} has no steps.")
    all_steps = outline.steps  # also steps referenced without waiting: a run may select them
    check_given_places(each.step for each in all_steps)
    check_no_overlap(all_steps)
    check_slice_types(each.step for each in all_steps)
    for each in all_steps:
        check_function_place(each.step)
        check_bounded(each.step.description, f"Step {each.name!r}: description", is_json=True)
    task_ids = _task_ids(all_steps)
    settings = _with_author_places(settings, params, all_steps)
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
        plan = PlanOperator(
            task_id=PLAN_TASK_ID,
            steps={task_ids[resolved]: resolved.step for resolved in all_steps},
            wanted={task_ids[outline.of(step)] for step in wanted},
            settings=settings,
            allow_cross_region=options.allow_cross_region,
            doc_md="Decides which steps run and which outputs are reused. The log shows the plan as a table.",
            outlets=(
                [step_asset(name) for name in dict.fromkeys(step.name for step in all_steps)]
                if options.asset_events_of_reused
                else []
            ),
        )
        _add_step_tasks(plan, all_steps, task_ids, settings, options)
    add_run_params(dag, options.selection)
    return dag


def _check_timezone(dag_id: str, timezone: str) -> None:
    if not isinstance(timezone, str):
        raise ExperimentError(f"timezone must be text, but is {truncated_repr(timezone)}.")
    try:
        pendulum.timezone(timezone)
    except (ValueError, OSError):  # OSError: a name that no file can have
        raise ExperimentError(
            f"DAG {truncated_repr(dag_id)}: there is no time zone {truncated_repr(timezone)}. Use a name like "
            "'Europe/Berlin'."
        ) from None


def _check_params(dag_id: str, params: Mapping[str, Any]) -> None:
    """Refuse defaults that Airflow would walk forever, or show whole in its own error."""
    for name, param in params.items():
        default, schema = param_default(param), getattr(param, "schema", None)
        where = f"DAG {truncated_repr(dag_id)}: param {truncated_repr(name)}"
        check_bounded({"name": name, "description": getattr(param, "description", None)}, where, is_json=True)
        for what, value in (("", default), (" (schema)", schema)):
            check_bounded(value, where + what, is_json=True)
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                raise ExperimentError(
                    f"{where}{what or ' has the default'} {truncated_repr(value)}, which JSON cannot represent. Use "
                    "text, a number, or a list or dictionary of them."
                ) from None


def _with_author_places(
    settings: ExperimentSettings, params: Mapping[str, Any], steps: Sequence[ResolvedStep]
) -> ExperimentSettings:
    """Add to the settings the author's other arguments that decide where outputs may be."""
    default = param_default(params.get(PREFIX))
    clusters = tuple(dict.fromkeys(each.step.cluster for each in steps if each.step.cluster))
    return replace(settings, default_param=default if isinstance(default, str) else None, clusters=clusters)


def _dag_arguments(
    dag_id: str, schedule: Any, given: Mapping[str, Any], settings: ExperimentSettings, max_concurrent: int | None
) -> dict[str, Any]:
    arguments = dict(given)
    arguments["default_args"] = _DEFAULTS | (arguments.get("default_args") or {})
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
    plan: PlanOperator,
    steps: Sequence[ResolvedStep],
    task_ids: Mapping[ResolvedStep, str],
    settings: ExperimentSettings,
    options: DagOptions,
) -> None:
    tasks: dict[ResolvedStep, StepOperator] = {}
    for index, resolved in enumerate(steps):
        task = StepOperator(
            task_id=task_ids[resolved],
            step=resolved.step,
            settings=settings,
            plan_task_id=PLAN_TASK_ID,
            index=index,
            trigger_rule="all_done" if resolved.dispensable else "none_failed",
            doc_md=resolved.step.description,
            outlets=[step_asset(resolved.name)],
            **_bounds(resolved.step.resources, options),
        )
        tasks[resolved] = task
        upstream = list({id(each): each for each in (tasks[needed] for needed in resolved.dependencies)}.values())
        task.set_upstream(upstream or plan)  # the plan skips any task of the run, with or without an edge


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


def _check_pools(dag_id: str, pools: Mapping[str, str]) -> None:
    if not isinstance(pools, Mapping) or not all(isinstance(text, str) for pair in pools.items() for text in pair):
        raise ExperimentError(f"DAG {dag_id!r}: pools must map text to text, such as {{'v4-8': 'my-pool'}}.")
    for key in pools.keys() - {_CPU_POOL, _GPU_POOL}:
        try:
            slice_type(key)
        except UnknownSliceTypeError as error:
            raise ExperimentError(
                f"DAG {dag_id!r}: pools are for slice types, {_CPU_POOL!r} and {_GPU_POOL!r}: {error}"
            ) from error


def _task_ids(steps: Sequence[ResolvedStep]) -> dict[ResolvedStep, str]:
    """Assign a task ID per step: its name without what Airflow refuses, numbered if repeated."""
    task_ids: dict[ResolvedStep, str] = {}
    taken = {PLAN_TASK_ID}
    numbers: Counter[str] = Counter()
    for step in steps:
        base = re.sub(r"[^\w.-]+", "_", step.name).strip("_")[:_MAX_TASK_ID] or "step"
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
