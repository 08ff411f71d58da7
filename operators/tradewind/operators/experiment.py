"""From steps to an Airflow DAG: one task a step, edges from the references in the configs, ``plan`` above them all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pendulum
from airflow.sdk import DAG, CronDataIntervalTimetable
from airflow.sdk import Param as AirflowParam

from tradewind.cloud_tpu.slice_types import UnknownSliceTypeError, slice_type
from tradewind.operators.placement import check_function_place
from tradewind.operators.plan import PlanOperator
from tradewind.operators.run_context import ExperimentSettings
from tradewind.operators.step import StepOperator
from tradewind.steps import (
    ExecutorStep,
    ExperimentError,
    InputName,
    Param,
    ParseTimeValues,
    ResolvedStep,
    TpuSlice,
    resolve,
    wanted_steps,
)

PLAN_TASK_ID = "plan"
_PARSE_TIME_PREFIX = "prefix:"
_DEFAULTS = {"retries": 3, "retry_delay": timedelta(seconds=10)}


def build_dag(
    dag_id: str,
    steps: Sequence[ExecutorStep | InputName],
    *,
    schedule: Any,
    params: Mapping[str, Any],
    settings: ExperimentSettings,
    dag_arguments: Mapping[str, Any],
) -> DAG:
    """The DAG of an experiment; see ``tradewind.experiment_dag``."""
    outline = resolve(steps, _PARSE_TIME_PREFIX, ParseTimeValues(frozenset(params)))
    wanted = wanted_steps(steps)
    needed = outline.needed(wanted)
    if not needed:
        raise ExperimentError(f"DAG {dag_id!r} has no steps.")
    _check_slice_types(needed)
    for each in needed:
        check_function_place(each.step)
    task_ids = _task_ids(needed)
    arguments = dict(dag_arguments)
    arguments["default_args"] = _DEFAULTS | arguments.get("default_args", {})
    arguments.setdefault("start_date", pendulum.datetime(2026, 1, 1, tz=settings.timezone))
    with DAG(
        dag_id,
        schedule=_timetable(schedule, settings.timezone),
        params={name: _airflow_param(param) for name, param in params.items()},
        **arguments,
    ) as dag:
        plan = PlanOperator(
            task_id=PLAN_TASK_ID,
            steps={task_ids[resolved]: resolved.step for resolved in needed},
            wanted={task_ids[outline.of(step)] for step in wanted},
            settings=settings,
            doc_md="Decides which steps run and which outputs are reused. The table is in the log.",
        )
        _add_step_tasks(plan, needed, task_ids, settings)
    return dag


def _add_step_tasks(
    plan: PlanOperator,
    needed: Sequence[ResolvedStep],
    task_ids: Mapping[ResolvedStep, str],
    settings: ExperimentSettings,
) -> None:
    tasks: dict[ResolvedStep, StepOperator] = {}
    for resolved in needed:
        task = StepOperator(
            task_id=task_ids[resolved],
            step=resolved.step,
            settings=settings,
            plan_task_id=PLAN_TASK_ID,
            trigger_rule="none_failed",
            doc_md=resolved.step.description,
        )
        tasks[resolved] = task
        upstream = dict.fromkeys(tasks[dependency] for dependency in resolved.dependencies)
        task.set_upstream([plan, *upstream])


def _check_slice_types(steps: Sequence[ResolvedStep]) -> None:
    for resolved in steps:
        resources = resolved.step.resources
        if isinstance(resources, TpuSlice):
            try:
                slice_type(resources.slice_type)
            except UnknownSliceTypeError as error:
                raise ExperimentError(f"Step {resolved.name!r}: {error}") from error


def _task_ids(steps: Sequence[ResolvedStep]) -> dict[ResolvedStep, str]:
    """A task id for each step: its name with what Airflow refuses replaced, numbered where names repeat."""
    task_ids: dict[ResolvedStep, str] = {}
    taken = {PLAN_TASK_ID}
    numbers: Counter[str] = Counter()
    for step in steps:
        base = re.sub(r"[^\w.-]+", "_", step.name).strip("_") or "step"
        task_id = base
        while task_id in taken:
            numbers[base] += 1
            task_id = f"{base}__{numbers[base] + 1}"
        taken.add(task_id)
        task_ids[step] = task_id
    return task_ids


def _timetable(schedule: Any, timezone: str) -> Any:
    """A cron text means data intervals here, not points in time: a night's data ends when its run starts."""
    return CronDataIntervalTimetable(schedule, timezone=timezone) if isinstance(schedule, str) else schedule


def _airflow_param(param: Any) -> Any:
    return (
        AirflowParam(param.default, description=param.description, **param.schema)
        if isinstance(param, Param)
        else param
    )
