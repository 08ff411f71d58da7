"""``tradewind rehearse drill``: run a drill in the foreground. All its processes end with it."""

from __future__ import annotations

import argparse
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tradewind.cli.output import CommandError, UsageError, json_lines, say, write_lines
from tradewind.cloud_tpu.slice_types import UnknownSliceTypeError, slice_type

if TYPE_CHECKING:
    from tradewind.rehearsal.drill.drill import DrillPlan

DAGS: Final = Path(__file__).with_name("drill_dags")
DAG: Final = "drill_training"
_MARK: Final = ".tradewind-drill"
"""File that marks a drill's folder: no other folder is emptied."""


def drill(arguments: argparse.Namespace) -> int:
    """Run the drill, and print its report.

    Raises:
        UsageError: The options make no sense.
        CommandError: The drill could not be run.
    """
    from tradewind.rehearsal.drill.drill import DrillError, hold_drill
    from tradewind.rehearsal.drill.environment import DrillEnvironmentError
    from tradewind.rehearsal.drill.observer import DrillTimeoutError
    from tradewind.rehearsal.local.airflow import LocalAirflowError
    from tradewind.rehearsal.local.airflow_api import AirflowApiError
    from tradewind.rehearsal.local.ray import LocalRayError

    plan = _plan(arguments)
    root = _emptied(Path(arguments.folder))
    try:
        report = hold_drill(plan, root, say)
    except (
        AirflowApiError, DrillError, DrillEnvironmentError, DrillTimeoutError, LocalAirflowError, LocalRayError
    ) as error:  # fmt: skip
        raise CommandError(f"{error} Logs: {root}.") from None
    finally:
        _leave_nothing(root)
    write_lines(json_lines(report.to_json()) if arguments.json else report.text().splitlines())
    return 0 if report.has_passed else 1


def _leave_nothing(root: Path) -> None:
    """End processes left by a second Ctrl-C during shutdown; ignore a third one."""
    from tradewind.rehearsal.local.processes import LocalStack

    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        LocalStack(root).stop(grace_seconds=1.0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _plan(arguments: argparse.Namespace) -> DrillPlan:
    from tradewind.rehearsal.drill.drill import DrillPlan
    from tradewind.rehearsal.drill.faults import Fault, UnknownFaultError, fault_named
    from tradewind.rehearsal.drill.injection import Pace

    if (arguments.dag is None) != (arguments.dags is None):
        raise UsageError("Give --dag and --dags together: --dags is the folder of the DAG.")
    dags = Path(arguments.dags).resolve() if arguments.dags else DAGS
    if not dags.is_dir():
        raise UsageError(f"--dags {arguments.dags}: there is no such folder.")
    try:
        kinds = tuple(map(fault_named, arguments.faults)) if arguments.faults else tuple(Fault)
        slices = tuple(slice_type(name).name for name in arguments.slices)
    except (UnknownFaultError, UnknownSliceTypeError) as error:
        raise UsageError(str(error)) from None
    pace = Pace(notice_s=arguments.notice, stock_out_s=arguments.stock_out, outage_s=arguments.outage)
    return DrillPlan(
        dags, arguments.dag or DAG, arguments.seed, kinds, arguments.count, slices, pace, dict(arguments.conf)
    )


def _emptied(root: Path) -> Path:
    """Empty the folder of an earlier drill's files, and return it."""
    from tradewind.rehearsal.local.processes import LocalStack

    root = root.resolve()
    if root.exists() and any(root.iterdir()):
        if not (root / _MARK).exists():
            raise UsageError(f"--dir {root}: this folder has other files. Name a new or an empty one.")
        LocalStack(root).stop()
        shutil.rmtree(root)
    root.mkdir(parents=True, exist_ok=True)
    (root / _MARK).touch()
    return root
