"""``tradewind rehearse``: control a rehearsal that runs in the background, in its own folder; run a drill.

``down`` finds all its processes by the folder and stops them, also after a crash. A rehearsal plays one cluster of no
fleet, or chosen clusters of a fleet file. A drill runs in the foreground, and all its processes end with it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import string
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tradewind.cli.output import CommandError, UsageError, json_lines, say, write_lines
from tradewind.cli.rehearse_options import DRILL, MAX_SLICES
from tradewind.cloud_tpu.resources import WITHOUT_MACHINES
from tradewind.cloud_tpu.slice_types import UnknownSliceTypeError, slice_type
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError, nearest_files_hint
from tradewind.fleet.fleet_file import load_fleet
from tradewind.rehearsal.cloud.control_client import CONTROL_FILE, RehearsalControl, RehearsalControlError
from tradewind.rehearsal.cloud.fleet_plan import FLEET_DAEMON, PLAN_FILE, ClusterPlan, FleetPlan

if TYPE_CHECKING:
    from tradewind.rehearsal.drill.drill import DrillPlan
    from tradewind.rehearsal.local.processes import LocalStack

_DAEMON: Final = "tradewind.rehearsal.cloud.daemon"
_ZONE: Final = "us-central2-b"
_NEEDED: Final = ("rich", "gcsfs", "google.cloud.tpu_v2")
_LOG: Final = "rehearsal"
_LOG_LINES: Final = 20
_GRACE_S: Final = 10.0
_POLL_S: Final = 0.2
_DRILL_DAGS: Final = Path(__file__).with_name("drill_dags")
_DRILL_DAG: Final = "drill_training"
_DRILL_MARK: Final = ".tradewind-drill"
"""File that marks a drill's folder: no other folder is emptied."""


def rehearse(name: str, arguments: argparse.Namespace) -> int:
    """Run the command ``name`` of ``tradewind rehearse``.

    Raises:
        UsageError: The options make no sense.
        CommandError: The command failed.
    """
    if name == DRILL.name:
        return _drill(arguments)
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "up": _up, "status": _status, "preempt": _preempt, "stockout": _stock_out, "down": _down,
    }  # fmt: skip
    try:
        return commands[name](arguments)
    except RehearsalControlError as error:
        raise CommandError(f"{error}{_elsewhere(arguments)}") from None


def _elsewhere(arguments: argparse.Namespace) -> str:
    """Describe where rehearsals run, if none runs in the chosen folder."""
    from tradewind.rehearsal.local.processes import roots_in_use

    if (_stack(arguments).root / CONTROL_FILE).exists():
        return ""
    others = [shlex.quote(str(root)) for root in roots_in_use() if (root / CONTROL_FILE).exists()]
    return f" Rehearsals run in --dir {', --dir '.join(others)}." if others else ""


def _up(arguments: argparse.Namespace) -> int:
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise UsageError(f"A rehearsal needs {', '.join(missing)}: install airflow-provider-tradewind[rehearsal].")
    stack = _stack(arguments)
    if (stack.root / CONTROL_FILE).exists() and stack.processes():
        say(f"A rehearsal already runs in {stack.root}. For another one, stop it first with 'rehearse down'.")
    else:
        _start(stack, arguments)
    control = RehearsalControl.of_folder(stack.root)
    status = control.ask("status")
    if status.get("dead_in_airflow"):
        say(f"Started again of Airflow: {', '.join(control.do('start_airflow'))}.")
    clusters = status.get("clusters", {"": status})
    for known in clusters.values():
        _print_addresses(known)
    if "airflow" in status["addresses"]:
        where = f"{stack.root}/airflow/secrets.json"
        say(f"Airflow: {status['addresses']['airflow']}, user admin, password in {where}.")
    say("The lines below set a shell's environment, Airflow connections to it included.")
    write_lines(_exports(status))
    return 0


def _start(stack: LocalStack, arguments: argparse.Namespace) -> None:
    plan = _plan(arguments)
    if plan is None:
        command = [sys.executable, "-m", _DAEMON, "--root", str(stack.root), "--zone", arguments.zone or _ZONE]
        command += [f"--slice={name}={kind}" for name, kind in _names(arguments.slices or [("v4-16", 1)]).items()]
    else:
        command = [sys.executable, "-m", FLEET_DAEMON, "--root", str(stack.root)]
    if arguments.airflow:
        if not Path(arguments.dags).is_dir():
            raise UsageError(f"--dags {arguments.dags}: there is no such folder.")
        command += ["--dags", str(Path(arguments.dags).resolve())]
    stack.stop(_GRACE_S)  # processes of a crashed rehearsal
    for file in (CONTROL_FILE, PLAN_FILE):
        (stack.root / file).unlink(missing_ok=True)
    if plan is not None:
        plan.write(stack.root)
    (stack.logs / f"{_LOG}.log").unlink(missing_ok=True)
    say(f"Starting a rehearsal in {stack.root} ...")
    daemon = stack.start(_LOG, command, dict(os.environ))
    try:
        _wait_until_up(stack, daemon, arguments.timeout)
    except BaseException:
        stack.stop(_GRACE_S)
        raise


def _plan(arguments: argparse.Namespace) -> FleetPlan | None:
    """Return the chosen clusters of a fleet; None for a cluster of no fleet."""
    if arguments.fleet is None:
        if arguments.clusters:
            raise UsageError("--cluster names clusters of a fleet file: give --fleet too.")
        return None
    if arguments.zone is not None:
        raise UsageError("--zone and --fleet exclude each other: each cluster has the zone of the fleet file.")
    return fleet_plan(arguments.fleet, arguments.clusters, dict(arguments.slices or ()))


def _wait_until_up(stack: LocalStack, daemon: subprocess.Popen[bytes], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not (stack.root / CONTROL_FILE).exists():
        problem = f"ended with code {daemon.returncode}" if daemon.poll() is not None else None
        if time.monotonic() > deadline:
            problem = f"is not up after {timeout:g} s"
        if problem:
            log = stack.logs / f"{_LOG}.log"
            end = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
            raise CommandError(f"The rehearsal {problem}; the end of {log}:\n{end}")
        time.sleep(_POLL_S)


def _names(wanted: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Name the slices: slice-a, slice-b and so on."""
    try:
        types = [slice_type(kind).name for kind, count in wanted for _ in range(count)]
    except UnknownSliceTypeError as error:
        raise UsageError(f"--slices: {error}") from None
    if len(types) > MAX_SLICES:
        raise UsageError(f"--slices: {len(types)} slices are more than one machine can rehearse.")
    return {f"slice-{letter}": kind for letter, kind in zip(string.ascii_lowercase, types, strict=False)}


def _print_addresses(status: Mapping[str, Any]) -> None:
    addresses = status["addresses"]
    slices = ", ".join(f"{known['name']} ({known['type']}, {known['state']})" for known in status["slices"])
    say(f"Slices in {status['zone']}: {slices or 'none'}.")
    say(f"Ray: {addresses['ray']}. Cloud TPU: {status['env']['TRADEWIND_TPU_ENDPOINT']}, gRPC {addresses['tpu_grpc']}.")


def _exports(status: Mapping[str, Any]) -> list[str]:
    variables = {
        **status["env"],
        **status.get("ray_env", {}),
        **{f"AIRFLOW_CONN_{name.upper()}": value for name, value in status.get("connections", {}).items()},
    }
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def _status(arguments: argparse.Namespace) -> int:
    root = _stack(arguments).root
    control = RehearsalControl.of_folder(root) if arguments.cluster is None else _control(arguments)
    status = control.ask("status")
    if arguments.json:
        write_lines(json_lines(status))
        return 0
    for name, known in status.get("clusters", {"": status}).items():
        _print_table(known, name)
    for name, why in status.get("dead_in_airflow", {}).items():
        again = f"tradewind rehearse up --dir {shlex.quote(arguments.folder)}"
        say(f"Airflow's {name} {why}. To start it again: {again}")
    return 0


def _print_table(status: Mapping[str, Any], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("Slice", "Type", "State", "Hosts in Ray", "Queued resource", title=title or None)
    for known in status["slices"]:
        seen = "not noticed yet" if known["state"] in WITHOUT_MACHINES else "yes"
        hosts = ", ".join(seen if host["in_ray"] else "no" for host in known["hosts"])
        table.add_row(known["name"], known["type"], known["state"], hosts or "-", known["queued_resource"] or "-")
    waiting = [queued for queued in status["queued_resources"] if queued["state"] != "ACTIVE"]
    console = Console()
    console.print(table)
    for queued in waiting:
        console.print(f"Queued resource {queued['name']}: {queued['state']}", markup=False)
    if status["stock_out"]:
        console.print(f"{status['zone']} is out of stock.", markup=False)


def _preempt(arguments: argparse.Namespace) -> int:
    _control(arguments).do("preempt", name=arguments.name, notice_s=arguments.notice)
    when = f"in {arguments.notice:g} s" if arguments.notice else "now"
    say(f"Slice {arguments.name} is preempted {when}.")
    return 0


def _stock_out(arguments: argparse.Namespace) -> int:
    _control(arguments).do("stock_out", on=arguments.switch == "on")
    say(f"The zone {'is out of slices' if arguments.switch == 'on' else 'has slices again'}.")
    return 0


def _down(arguments: argparse.Namespace) -> int:
    stack = _stack(arguments)
    stopped = stack.stop(_GRACE_S)
    (stack.root / CONTROL_FILE).unlink(missing_ok=True)
    say(f"Stopped {stopped} processes of {stack.root}." if stopped else f"Nothing runs in {stack.root}.")
    return 0


def _control(arguments: argparse.Namespace) -> RehearsalControl:
    """Return the control API of the rehearsal, or of the chosen cluster of a rehearsed fleet."""
    root = _stack(arguments).root
    plan = FleetPlan.of_folder(root) if (root / CONTROL_FILE).exists() else None
    if plan is None:
        if arguments.cluster is not None:
            raise UsageError(f"--cluster {arguments.cluster}: no fleet is rehearsed in {root}.")
        return RehearsalControl.of_folder(root)
    names = [one.name for one in plan.clusters]
    name = arguments.cluster or (names[0] if len(names) == 1 else None)
    if name not in names:
        what = "Several clusters are rehearsed" if name is None else f"--cluster {name} is not rehearsed"
        raise UsageError(f"{what}: name one of {', '.join(names)} with --cluster.")
    return RehearsalControl.of_folder(root / name)


def _stack(arguments: argparse.Namespace) -> LocalStack:
    from tradewind.rehearsal.local.processes import LocalStack

    return LocalStack(Path(arguments.folder))


def fleet_plan(file: str, names: Sequence[str], wanted: Mapping[str, int]) -> FleetPlan:
    """Return the plan for these clusters of the fleet; for its default cluster, if none is named.

    Args:
        wanted: Slice type → initial count in each cluster; empty: the minimum in the fleet file.

    Raises:
        UsageError: There is no such file or cluster, or one machine cannot rehearse them together.
        CommandError: The file cannot be used.
    """
    if not os.path.isfile(file):  # a wrong path is a usage error, not an error of the file
        raise UsageError(f"--fleet {file}: there is no such file{nearest_files_hint(Path(file))}.")
    try:
        fleet = load_fleet(Path(os.path.realpath(file)))
        chosen = [fleet.cluster(name) for name in dict.fromkeys(names)] or [fleet.cluster()]
    except FleetError as error:
        raise CommandError(str(error)) from None
    _check_zones(chosen)
    plans = tuple(_cluster_plan(cluster, wanted) for cluster in chosen)
    count = sum(len(plan.slices) for plan in plans)
    if count > MAX_SLICES:
        raise UsageError(f"{count} slices are more than one machine can rehearse: give each cluster fewer by --slices.")
    known = [cluster.name for cluster in chosen]
    default = fleet.default_cluster if fleet.default_cluster in known else known[0]
    return FleetPlan(str(fleet.file), default, plans)


def _check_zones(chosen: Sequence[FleetCluster]) -> None:
    """Refuse two clusters in one zone: all slices of a rehearsed zone join the same cluster."""
    first: dict[tuple[str, str], str] = {}
    for cluster in chosen:
        other = first.setdefault((cluster.project, cluster.zone), cluster.name)
        if other != cluster.name:
            raise UsageError(
                f"Clusters {other} and {cluster.name} are both in {cluster.project}, {cluster.zone}: rehearse one of "
                "them at a time."
            )


def _cluster_plan(cluster: FleetCluster, wanted: Mapping[str, int]) -> ClusterPlan:
    known = [pool.kind.name for pool in cluster.pools]
    if unknown := sorted(wanted.keys() - set(known)):
        raise UsageError(f"--slices: cluster {cluster.name} has no {unknown[0]}; it has {', '.join(known)}.")
    counts = wanted or {pool.kind.name: pool.minimum for pool in cluster.pools}
    types = [kind for kind, count in counts.items() for _ in range(count)]
    return ClusterPlan(
        cluster.name,
        cluster.project,
        cluster.zone,
        cluster.bucket,
        cluster.connection,
        cluster.token_secret,
        {f"{cluster.name}-{number}": kind for number, kind in enumerate(types)},
        {key: value for key, value in cluster.connection_extra.items() if key != "token_secret"},
    )


def _drill(arguments: argparse.Namespace) -> int:
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

    plan = _drill_plan(arguments)
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


def _drill_plan(arguments: argparse.Namespace) -> DrillPlan:
    from tradewind.rehearsal.drill.drill import DrillPlan
    from tradewind.rehearsal.drill.faults import Fault, UnknownFaultError, fault_named
    from tradewind.rehearsal.drill.injection import Pace

    if (arguments.dag is None) != (arguments.dags is None):
        raise UsageError("Give --dag and --dags together: --dags is the folder of the DAG.")
    dags = Path(arguments.dags).resolve() if arguments.dags else _DRILL_DAGS
    if not dags.is_dir():
        raise UsageError(f"--dags {arguments.dags}: there is no such folder.")
    try:
        kinds = tuple(map(fault_named, arguments.faults)) if arguments.faults else tuple(Fault)
        slices = tuple(slice_type(name).name for name in arguments.slices)
    except (UnknownFaultError, UnknownSliceTypeError) as error:
        raise UsageError(str(error)) from None
    pace = Pace(notice_s=arguments.notice, stock_out_s=arguments.stock_out, outage_s=arguments.outage)
    return DrillPlan(
        dags, arguments.dag or _DRILL_DAG, arguments.seed, kinds, arguments.count, slices, pace, dict(arguments.conf)
    )


def _emptied(root: Path) -> Path:
    """Empty the folder of an earlier drill's files, and return it."""
    from tradewind.rehearsal.local.processes import LocalStack

    root = root.resolve()
    if root.exists() and any(root.iterdir()):
        if not (root / _DRILL_MARK).exists():
            raise UsageError(f"--dir {root}: this folder has other files. Name a new or an empty one.")
        LocalStack(root).stop()
        shutil.rmtree(root)
    root.mkdir(parents=True, exist_ok=True)
    (root / _DRILL_MARK).touch()
    return root
