"""What a DAG file calls: ``experiment_dag``, and ``executor_main`` for files written for Marin.

Nothing heavy is imported here, and Airflow only when there is a DAG to make: a DAG file can also be imported on a
cluster, where its step functions run and no Airflow is installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tradewind.runtime.environment import STEP_VARIABLE
from tradewind.steps import ExecutorStep, InputName

if TYPE_CHECKING:
    from airflow.sdk import DAG


def experiment_dag(
    dag_id: str,
    steps: Sequence[ExecutorStep | InputName],
    *,
    schedule: Any = None,
    params: Mapping[str, Any] | None = None,
    prefix: str | None = None,
    cluster: str | None = None,
    timezone: str = "UTC",
    **dag_arguments: Any,
) -> DAG | None:
    """Make an Airflow DAG of ``steps`` and everything they refer to.

    Args:
        dag_id: The DAG's id.
        steps: The steps that are wanted.
        schedule: A cron text (``"@daily"``), which gives data intervals in ``timezone``, or what else Airflow takes.
        params: Name → default or ``Param``; read in configs with ``run_param(name)``.
        prefix: Where outputs go, if not where the run or the deployment says.
        cluster: The id of a ``ray`` connection, if not the deployment's ``default_cluster``.
        timezone: Name of the time zone of the schedule and of ``night()``.
        dag_arguments: Further arguments of ``airflow.sdk.DAG``.

    Returns:
        The DAG; None on a cluster, where there is nothing to schedule.

    Raises:
        ExperimentError: The steps make no valid experiment; Airflow shows it as the file's import error.
    """
    if STEP_VARIABLE in os.environ:
        return None
    from tradewind.operators.experiment import build_dag
    from tradewind.operators.run_context import ExperimentSettings

    settings = ExperimentSettings(prefix=prefix, cluster=cluster, timezone=timezone)
    return build_dag(
        dag_id, steps, schedule=schedule, params=params or {}, settings=settings, dag_arguments=dag_arguments
    )


def executor_main(
    steps: Sequence[ExecutorStep | InputName],
    description: str | None = None,
    max_concurrent: int | None = None,
    **experiment_arguments: Any,
) -> DAG | None:
    """Marin's entry point: in a DAG file it makes the DAG, named after the file; in a script it runs the steps here.

    ``max_concurrent`` bounds how many steps of the DAG run at a time.

    As a script it takes ``--prefix PATH`` and ``--dry_run true``.
    """
    if max_concurrent is not None and max_concurrent < 1:
        raise ValueError(f"max_concurrent must be a positive integer, got {max_concurrent}")
    caller = sys._getframe(1).f_globals
    file = Path(caller["__file__"])
    if caller["__name__"] == "__main__":
        from tradewind.cli.run_script import run_script

        run_script(steps, file.parent, sys.argv[1:])
        return None
    if max_concurrent is not None:
        experiment_arguments["max_active_tasks"] = max_concurrent
    return experiment_dag(file.stem, steps, description=description, **experiment_arguments)
