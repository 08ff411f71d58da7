"""The demo: a Ray cluster, an Airflow and one pipeline on this machine, with one command.

``python -m demo up`` starts the stack or reuses a running one, runs the pipeline, shows its progress, and leaves the
stack running for the Airflow UI. ``down`` stops every process of it. The exit code is 0 if the run succeeded.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
from rich.console import Console
from rich.live import Live

from demo import view
from demo.stack import SHELL_FILE, StackAddresses, password, running_stack, start_stack, stop_stack
from tradewind.rehearsal.local.airflow_api import AirflowApi, AirflowApiError
from tradewind.rehearsal.local.processes import LocalStack

DAGS_FOLDER = Path(__file__).resolve().parents[1] / "dags"
DEFAULT_DAG = "nightly_code_lm"
RUN_TIMEOUT = 3600.0
DAG_TIMEOUT = 90.0
LOG_WIDTH = 180


class RunProgress:
    """State of one run, shown again after each poll."""

    def __init__(self, api: AirflowApi, dag_id: str, run_id: str, console: Console) -> None:
        self.api = api
        self.dag_id = dag_id
        self.run_id = run_id
        self.plan: dict[str, Any] | None = None
        self.instances: list[dict[str, Any]] = []
        self.state = "queued"
        self._planned: set[str] = set()
        self._views: list[view.TaskView] = []
        self._messages: dict[str, str] = {}
        self._shown: dict[str, view.TaskView] = {}
        self._console = console
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None

    def showing(self) -> AbstractContextManager[Any]:
        return self._live or nullcontext()

    def update(self, run: dict[str, Any]) -> None:
        """Refresh the state and show it; called at every poll of the run."""
        self.state = run["state"]
        self.instances = self.api.task_instances(self.dag_id, self.run_id)
        self._fetch_plans()
        for instance in view.with_news(self._views, self.instances):
            self._messages[instance["task_id"]] = view.last_message(self.log_of(instance))
        views = view.task_views(self.instances, self.plan, self._messages, datetime.now(UTC))
        if self._live:
            self._live.update(view.live_table(views, f"{self.dag_id}: {self.state}"))
        else:
            for each in view.news(self._shown, views):
                self._shown[each.task_id] = each
                self._console.print(each.line(), soft_wrap=True, markup=False, highlight=False)
        self._views = views

    @property
    def succeeded(self) -> bool:
        """Return whether no task failed: Airflow counts a run as success if its last tasks were skipped."""
        return self.state == "success" and view.first_failed(self.instances) is None

    def log_of(self, instance: view.Json) -> str:
        """Return the log of the task's current try, if there is one."""
        try:
            return self.api.task_log(self.dag_id, self.run_id, instance["task_id"], instance["try_number"])
        except AirflowApiError as error:
            return str(error)

    def _fetch_plans(self) -> None:
        """Add the steps of plans that have been made since: a DAG has one, or one for each group of steps."""
        for instance in self.instances:
            task_id = instance["task_id"]
            if view.is_plan(task_id) and instance["state"] == "success" and task_id not in self._planned:
                self._planned.add(task_id)
                steps = self.api.xcom(self.dag_id, self.run_id, task_id)["steps"]
                self.plan = {"steps": [*view.plan_steps(self.plan), *steps]}


def up(stack: LocalStack, dags_folder: Path, dag_id: str, conf: dict[str, Any], console: Console) -> int:
    """Run the pipeline once on the stack; return the exit code."""
    addresses = _ensure_stack(stack, dags_folder, console)
    api = AirflowApi(addresses.airflow, addresses.username, password(stack))
    _print_access(addresses, stack, console)  # a run takes minutes, and the user may watch it there
    started = time.monotonic()
    try:
        progress = _run_dag(api, dag_id, conf, console)
        seconds = time.monotonic() - started
        _print_outcome(progress, seconds, console)
    finally:  # the user looks at errors there
        _print_access(addresses, stack, console)
    console.print(f"{dag_id}: {'success' if progress.succeeded else 'failed'} after {seconds:.1f} s.")
    return 0 if progress.succeeded else 1


def down(stack: LocalStack, console: Console) -> int:
    stopped = stop_stack(stack)
    console.print(f"Stopped {stopped} processes of {stack.root}." if stopped else f"Nothing runs in {stack.root}.")
    return 0


def _ensure_stack(stack: LocalStack, dags_folder: Path, console: Console) -> StackAddresses:
    if addresses := running_stack(stack, dags_folder):
        console.print(f"Using the running stack: Airflow at {addresses.airflow}, Ray at {addresses.ray}.")
        return addresses
    started = time.monotonic()
    with console.status("Starting Ray and Airflow ..."):
        addresses = start_stack(stack, dags_folder)
    seconds = time.monotonic() - started
    console.print(f"Started Ray at {addresses.ray} and Airflow at {addresses.airflow} in {seconds:.1f} s.")
    return addresses


def _run_dag(api: AirflowApi, dag_id: str, conf: dict[str, Any], console: Console) -> RunProgress:
    reported: set[str] = set()

    def report_broken_files() -> None:
        for broken in set(api.broken_files()) - reported:
            reported.add(broken)
            console.print(f"Waiting for DAG {dag_id!r}, but {broken}", style="red", soft_wrap=True, markup=False)

    api.wait_for_dag(dag_id, DAG_TIMEOUT, on_poll=report_broken_files)
    api.unpause(dag_id)
    run_id = api.trigger(dag_id, conf, logical_date=datetime.now(UTC))
    progress = RunProgress(api, dag_id, run_id, console)
    with progress.showing():
        api.wait_for_run(dag_id, run_id, RUN_TIMEOUT, on_poll=progress.update)
    return progress


def _print_outcome(progress: RunProgress, seconds: float, console: Console) -> None:
    if progress.plan:
        rows = view.step_rows(progress.plan, progress.instances)
        console.print(view.reuse_sentence(rows, seconds))
        console.print(view.summary_table(rows))
    if failed := view.first_failed(progress.instances):
        console.print(f"Task {failed['task_id']} failed; the end of its log:", style="red")
        for line in view.last_lines(progress.log_of(failed)):
            console.print(line, soft_wrap=True, markup=False, highlight=False)
        return
    for line in _evaluation(progress.plan):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    if report := view.output_of(progress.plan, view.REPORT_STEP):
        console.print(f"Report: {report}/report.md", soft_wrap=True)


def _evaluation(plan: dict[str, Any] | None) -> list[str]:
    path = view.output_of(plan, view.EVALUATE_STEP)
    if path is None:
        return []
    with fsspec.open(f"{path}/results.json", "rt") as file:
        return view.evaluation_lines(json.load(file))


def _print_access(addresses: StackAddresses, stack: LocalStack, console: Console) -> None:
    login = f"user {addresses.username}, password {password(stack)}"
    console.print(f"Airflow: {addresses.airflow} ({login})", soft_wrap=True, highlight=False)
    console.print(f"Ray dashboard: {addresses.ray}", soft_wrap=True)
    console.print(
        f"For commands about them: . {stack.root / SHELL_FILE}", soft_wrap=True, markup=False, highlight=False
    )


def _json_object(text: str) -> dict[str, Any]:
    with suppress(ValueError):
        if isinstance(found := json.loads(text), dict):
            return found
    raise argparse.ArgumentTypeError(f'{text} is not a JSON object like {{"learning_rate": 0.004}}')


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("command", nargs="?", choices=("up", "down"), default="up")
    parser.add_argument("--root", type=Path, default=Path(".demo"), help="folder of the stack (default: .demo)")
    parser.add_argument("--dags", type=Path, default=DAGS_FOLDER, help="DAGs folder (default: the repository's)")
    parser.add_argument("--dag", default=DEFAULT_DAG, help=f"DAG to run (default: {DEFAULT_DAG})")
    parser.add_argument("--conf", type=_json_object, default={}, metavar="JSON", help="DAG params, as a JSON object")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    # A log file has no width: its tables are as wide as their paths need.
    console = Console() if sys.stdout.isatty() else Console(width=LOG_WIDTH)
    stack = LocalStack(options.root)
    if options.command == "down":
        return down(stack, console)
    try:
        return up(stack, options.dags, options.dag, options.conf, console)
    except AirflowApiError as error:
        console.print(str(error), style="red", soft_wrap=True, markup=False)
        return 1
    except KeyboardInterrupt:
        console.print(f"Interrupted; the stack in {stack.root} is still running. Stop it with `down`.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
