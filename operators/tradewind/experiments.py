"""Entry points of DAG files: ``experiment_dag``, ``experiment_group``, and ``executor_main`` for Marin's files.

A DAG file that is run as a script runs the steps instead of making the DAG, unless it calls the DAG's ``test()``.

This imports no large libraries, and Airflow only to make a DAG: step functions import DAG files on clusters, where no
Airflow is installed.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tradewind.serialization.spec import STEP_VARIABLE
from tradewind.steps import ExecutorStep, ExperimentError, InputName, check_bounded, truncated_repr

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from tradewind.operators.group import ExperimentGroup
    from tradewind.plans.selection import Selection

MAX_COUNT = 2**31
"""Airflow's database stores smaller numbers."""

_MAKERS = ("experiment_dag", "executor_main")


def experiment_dag(
    dag_id: str,
    steps: Sequence[ExecutorStep | InputName],
    *,
    schedule: Any = None,
    params: Mapping[str, Any] | None = None,
    prefix: str | None = None,
    cluster: str | None = None,
    timezone: str = "UTC",
    run_only: Sequence[str] = (),
    force: Sequence[str] = (),
    force_downstream: bool = False,
    force_run_failed: bool = True,
    max_concurrent: int | None = None,
    pools: Mapping[str, str] | None = None,
    asset_events_of_reused: bool = False,
    allow_cross_region: Sequence[str] = (),
    allow_outside: Sequence[str] = (),
    **dag_arguments: Any,
) -> DAG | None:
    """Make an Airflow DAG of ``steps`` and all steps that they refer to; in a script, run them here.

    A script has the options ``--prefix PATH``, ``--dry_run true`` and those that ``--help`` shows. It takes the
    defaults of ``params``, and ignores what only Airflow can do: schedules, pools, clusters.

    Args:
        dag_id: The DAG's id.
        steps: The wanted steps.
        schedule: A cron text (``"@daily"``), which gives data intervals in ``timezone``, or any Airflow schedule.
        params: Name → default or ``Param``; read in configs with ``run_param(name)``.
        prefix: Prefix of the outputs, if not that of the run or the deployment.
        cluster: The id of a ``ray`` connection, if not the deployment's ``default_cluster``.
        timezone: Name of the time zone of the schedule and of ``night()``.
        run_only: Run only the steps whose names match these regular expressions, and their dependencies. This and the
            next three are defaults: the trigger form has a field for each.
        force: Run again the steps whose names match these regular expressions.
        force_downstream: Also run again the steps that read the outputs of the forced ones.
        force_run_failed: Retry steps that failed in an earlier run.
        max_concurrent: Maximum number of running steps per run. Each holds a worker slot while it runs.
        pools: Slice type, ``"cpu"`` or ``"gpu"`` → Airflow pool of the steps that run on it: a limit across runs. Make
            the pool with ``--include-deferred``.
        asset_events_of_reused: Emit asset events, marked ``cached``, for reused outputs too.
        allow_cross_region: Names of steps that may read from buckets in other regions than their cluster's, and paths
            below which any step may.
        allow_outside: Names of steps whose absolute ``override_output_path`` may be outside the prefix and the allowed
            roots, and paths below which any step's may be.
        dag_arguments: Further arguments of ``airflow.sdk.DAG``.

    Returns:
        The DAG; None in a script without ``dag.test()``, and on a cluster, where there is nothing to schedule.

    Raises:
        ExperimentError: The steps make no valid experiment; Airflow shows it as the file's import error.
    """
    caller = _calling_file()
    script = _script_folder(caller)
    if script is None and STEP_VARIABLE in os.environ:
        return None
    try:
        _check_arguments(steps, max_concurrent, params)
        _check_texts(dag_id=dag_id)
        _check_texts(prefix=prefix, cluster=cluster, description=dag_arguments.get("description"), is_optional=True)
        selection = _selection(run_only, force, force_downstream, force_run_failed)
        outside = _as_tuple("allow_outside", allow_outside)
        crossing = _as_tuple("allow_cross_region", allow_cross_region)
    except ExperimentError as error:
        if script is None:
            raise
        sys.exit(f"error: {error}")
    if script is not None and not _calls_test(Path(caller["__file__"]).read_bytes()):
        from tradewind.local.run import ScriptArguments, run_script

        arguments = ScriptArguments(prefix, selection, params or {}, max_concurrent, outside)
        run_script(steps, script, sys.argv[1:], arguments)
        return None
    from tradewind.operators.experiment import DagOptions, build_dag
    from tradewind.tasks.context import ExperimentSettings

    dag = build_dag(
        dag_id,
        steps,
        schedule=schedule,
        params=params or {},
        settings=ExperimentSettings(prefix=prefix, cluster=cluster, timezone=timezone, allow_outside=outside),
        dag_arguments=dag_arguments,
        options=DagOptions(selection, max_concurrent, pools or {}, asset_events_of_reused, crossing),
    )
    if script is not None:
        _set_file(dag, caller["__file__"], script)
    return dag


def experiment_group(
    group_id: str,
    steps: Sequence[ExecutorStep | InputName],
    *,
    values: Mapping[str, Any] | None = None,
    prefix: str | None = None,
    cluster: str | None = None,
    timezone: str | None = None,
    run_only: Sequence[str] = (),
    force: Sequence[str] = (),
    force_downstream: bool = False,
    force_run_failed: bool = True,
    pools: Mapping[str, str] | None = None,
    asset_events_of_reused: bool = False,
    allow_cross_region: Sequence[str] = (),
    allow_outside: Sequence[str] = (),
    default_args: Mapping[str, Any] | None = None,
    max_concurrent: None = None,
) -> ExperimentGroup:
    """Make a task group of ``steps`` and all steps that they refer to, in the current Airflow DAG.

    Its plan waits for the tasks upstream of the group. Its last task hands the output paths on: ``group.output`` is a
    dictionary step name → path, and ``group.output["train"]`` one path. That task succeeds also if all outputs are
    reused. The trigger form has the options of each group, such as ``train.force``.

    Args:
        group_id: The group's id.
        steps: The wanted steps.
        values: Name → value of the run, or result of a task; read in configs with ``run_param(name)``, like the
            params of the DAG.
        timezone: Name of the time zone of ``night()``, if not that of the DAG's schedule.
        default_args: Arguments of the group's tasks; they take precedence over the DAG's.
        max_concurrent: Refused; Airflow has no limit per group. Use ``pools``.
        prefix: This and the other arguments are those of ``experiment_dag``.

    Returns:
        The task group.

    Raises:
        ExperimentError: The steps make no valid experiment; Airflow shows it as the file's import error.
    """
    from tradewind.operators.experiment import DagOptions
    from tradewind.operators.group import build_group
    from tradewind.tasks.context import ExperimentSettings

    if max_concurrent is not None:
        raise ExperimentError(
            "A group has no max_concurrent, since Airflow limits tasks by DAG or pool. Give the group pools, such "
            "as pools={'cpu': 'my-pool'}, or the DAG max_active_tasks."
        )
    _check_arguments(steps, None, None)
    _check_texts(group_id=group_id)
    _check_texts(prefix=prefix, cluster=cluster, is_optional=True)
    selection = _selection(run_only, force, force_downstream, force_run_failed)
    outside = _as_tuple("allow_outside", allow_outside)
    crossing = _as_tuple("allow_cross_region", allow_cross_region)
    return build_group(
        group_id,
        steps,
        values={} if values is None else values,
        timezone=timezone,
        settings=ExperimentSettings(prefix=prefix, cluster=cluster, allow_outside=outside),
        options=DagOptions(selection, None, pools or {}, asset_events_of_reused, crossing),
        default_args=default_args or {},
    )


def executor_main(
    steps: Sequence[ExecutorStep | InputName],
    description: str | None = None,
    max_concurrent: int | None = None,
    **experiment_arguments: Any,
) -> DAG | None:
    """Do as ``experiment_dag``, with the name of the calling file as ``dag_id``. Marin's entry point.

    ``max_concurrent`` and the further arguments are those of ``experiment_dag``.
    """
    file = sys._getframe(1).f_globals.get("__file__")
    if file is None:
        raise ExperimentError("executor_main names the DAG after the file that calls it: call it in a file.")
    return experiment_dag(
        Path(file).stem, steps, description=description, max_concurrent=max_concurrent, **experiment_arguments
    )


def _calling_file() -> Mapping[str, Any]:
    """Return the global names of the file that calls this module."""
    frame = sys._getframe(1)
    while frame.f_globals is globals() and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_globals


def _script_folder(caller: Mapping[str, Any]) -> Path | None:
    """Return the folder of the calling file, if Python runs it as a script; with ``-m`` its root."""
    if not _is_script(caller):
        return None
    package = caller["__spec__"].parent if caller.get("__spec__") else ""
    return Path(caller["__file__"]).resolve().parents[len(package.split(".")) if package else 0]


def _calls_test(source: bytes) -> bool:
    """Whether a script tests its DAG with Airflow, as in ``dag = experiment_dag(...)`` and then ``dag.test()``."""
    nodes = [*ast.walk(ast.parse(source))]
    calls = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    made = [each for each in calls if ast.unparse(each.value.func).rpartition(".")[2] in _MAKERS]  # type: ignore[attr-defined]
    tests = {f"{ast.unparse(target)}.test" for each in made for target in each.targets}
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) in tests for node in nodes)


def _set_file(dag: DAG, file: str, folder: Path) -> None:
    """Set the file of a script's DAG, as Airflow's DAG processor does for others, and the folder of its code."""
    from tradewind.tasks.code import set_code_folder

    dag.fileloc = file
    set_code_folder(dag, folder)


def _selection(
    run_only: Sequence[str], force: Sequence[str], force_downstream: bool, force_run_failed: bool
) -> Selection:
    from tradewind.plans.selection import Selection

    return Selection(_as_tuple("run_only", run_only), _as_tuple("force", force), force_downstream, force_run_failed)


def _is_script(caller: Mapping[str, Any]) -> bool:
    return caller.get("__name__") == "__main__" and "__file__" in caller  # a notebook has no file


def refuse_script(caller: Mapping[str, Any], instead: str) -> None:
    """End a script that would only make DAGs, which nothing runs; ``caller`` has its global names."""
    if _is_script(caller):
        sys.exit(f"error: {caller['__file__']} only makes DAGs, for Airflow. To run the steps here, run {instead}.")


def _check_arguments(steps: Any, max_concurrent: int | None, params: Any) -> None:
    if not isinstance(steps, Collection) or isinstance(steps, str):
        raise ExperimentError(f"steps must be a list, such as [step], but is of type {type(steps).__name__}.")
    is_count = isinstance(max_concurrent, int) and not isinstance(max_concurrent, bool)
    if max_concurrent is not None and not (is_count and 0 < max_concurrent < MAX_COUNT):
        raise ExperimentError(f"max_concurrent must be a positive integer, got {truncated_repr(max_concurrent)}")
    if params is not None and (not isinstance(params, Mapping) or not all(isinstance(name, str) for name in params)):
        raise ExperimentError(f"params must map names to defaults, but is {truncated_repr(params)}.")


def _check_texts(*, is_optional: bool = False, **values: Any) -> None:
    """Check texts before a message includes any of them, which takes forever for some values."""
    for name, value in values.items():
        if not isinstance(value, str) and not (value is None and is_optional):
            raise ExperimentError(f"{name} must be text, but is {truncated_repr(value)}.")
        check_bounded(value, name, is_json=True)


def _as_tuple(argument: str, texts: Any) -> tuple[str, ...]:
    is_list = isinstance(texts, Collection) and not isinstance(texts, str)
    if not is_list or not all(isinstance(text, str) for text in texts):
        example = texts if isinstance(texts, str) else "train"
        raise ExperimentError(
            f"{argument} must be a list, such as [{truncated_repr(example)}], but is {truncated_repr(texts)}."
        )
    return tuple(texts)
