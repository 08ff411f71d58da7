"""Output of the demo, as functions from plain data to text and tables: no clock, network or terminal.

Steps are in the order of the plan; tasks outside the plan, such as the plan's own, come before them. A task that the
plan skipped is shown as "reused".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from tradewind.text import single_line

PLAN_TASK = "plan"
EVALUATE_STEP = "evaluate"
REPORT_STEP = "report"
MESSAGE_WIDTH = 90
MESSAGE_INTERVAL_S = 5.0
"""Of the lines of one task, where the terminal cannot show them in place."""

WAITING = "waiting"
REUSED = "reused"
COLOURS = {
    "success": "green",
    REUSED: "cyan",
    "running": "yellow",
    "deferred": "yellow",
    "up_for_retry": "magenta",
    "failed": "red",
    "upstream_failed": "red",
    WAITING: "dim",
}
AIRFLOWS_GROUPS = frozenset({"Log message source details", "Pre Execute", "Post Execute"})
AIRFLOWS_OWN = re.compile(r"trigger .*\(ID \d+\) starting|trigger completed|Trigger fired event")
"""Messages of the triggerer in the log of a deferred task."""
FINISHED = re.compile(r"Step '.*' is finished: .*")
"""Final message of the step's task, which the last table shows too."""
AT_WORK = frozenset({"running", "deferred"})
ENDED = frozenset({"success", "failed"})

Json = Mapping[str, Any]


@dataclass(frozen=True)
class TaskView:
    """One row of the live table."""

    task_id: str
    state: str
    seconds: float | None
    message: str = ""

    def line(self) -> str:
        """Return the row for a log file: the change, in one line."""
        seconds = "" if self.seconds is None else f" ({self.seconds:.1f} s)"
        message = f": {self.message}" if self.message else ""
        return f"{self.task_id} {self.state}{seconds}{message}"


@dataclass(frozen=True)
class StepRow:
    """One row of the last table: the outcome of a step."""

    name: str
    version: str
    decision: str
    state: str
    seconds: float | None
    output_path: str


def is_plan(task_id: str) -> bool:
    """Whether a task makes a plan: that of the DAG, or of a group of steps in it."""
    return task_id.rpartition(".")[2] == PLAN_TASK


def plan_steps(plan: Json | None) -> list[Json]:
    """Return the steps of the plan's XCom in execution order; none without a plan."""
    return list(plan["steps"]) if plan else []


def task_views(
    instances: Sequence[Json], plan: Json | None, messages: Mapping[str, str], now: datetime
) -> list[TaskView]:
    """Return the run's tasks in the order of the plan, with their last messages."""
    reused = {step["task_id"] for step in plan_steps(plan) if step["decision"] == "REUSE"}
    return [
        TaskView(
            task_id=instance["task_id"],
            state=_state(instance, reused),
            seconds=_seconds(instance, now),
            message=messages.get(instance["task_id"], ""),
        )
        for instance in _in_plan_order(instances, plan)
    ]


def with_news(before: Sequence[TaskView], instances: Sequence[Json]) -> list[Json]:
    """Return the tasks whose log may have new messages: running ones, and those that ended since."""
    known = {view.task_id: view.state for view in before}
    return [
        instance
        for instance in instances
        if instance["state"] in AT_WORK
        or (instance["state"] in ENDED and instance["state"] != known.get(instance["task_id"]))
    ]


def news(shown: Mapping[str, TaskView], now: Sequence[TaskView]) -> list[TaskView]:
    """Return the tasks to show again: with a new state, or at work with a message that is new since a while."""
    return [view for view in now if _is_news(view, shown.get(view.task_id, TaskView(view.task_id, WAITING, None)))]


def _is_news(view: TaskView, shown: TaskView) -> bool:
    if view.state != shown.state:
        return True
    is_due = (view.seconds or 0) - (shown.seconds or 0) >= MESSAGE_INTERVAL_S
    return view.state in AT_WORK and view.message not in ("", shown.message) and is_due


def live_table(views: Sequence[TaskView], title: str) -> Table:
    table = Table(title=title, title_justify="left", expand=True)
    table.add_column("task", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("latest message", ratio=1, no_wrap=True, overflow="ellipsis")
    for view in views:
        table.add_row(view.task_id, _coloured(view.state), _number(view.seconds), Text(view.message))
    return table


def step_rows(plan: Json, instances: Sequence[Json]) -> list[StepRow]:
    by_task = {instance["task_id"]: instance for instance in instances}
    return [_step_row(step, by_task.get(step["task_id"], {})) for step in plan_steps(plan)]


def summary_table(rows: Sequence[StepRow]) -> Table:
    table = Table(title="Steps", title_justify="left")
    table.add_column("step", no_wrap=True)
    table.add_column("version", no_wrap=True)
    table.add_column("decision", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("output path", overflow="fold")
    for row in rows:
        state = _coloured(row.state)
        table.add_row(row.name, row.version, row.decision, state, _number(row.seconds), row.output_path)
    return table


def reuse_sentence(rows: Sequence[StepRow], seconds: float) -> str:
    """Say how many steps did not run, and for a run without work how long it took."""
    reused = sum(row.decision == "REUSE" for row in rows)
    count = f"{reused} of {len(rows)} steps reused"
    return f"Nothing had to run: {count}, in {seconds:.1f} s." if reused == len(rows) else f"{count}."


def evaluation_lines(results: Json) -> list[str]:
    """Format the results of the step ``evaluate``: the loss, and a text sample of the model."""
    checkpoint = results["checkpoint"]
    lines = [f"Validation loss {checkpoint['loss']:.4f} ({checkpoint['bpb']:.4f} bits per byte)"]
    if sample := results.get("sample"):
        lines += ["The model writes:", *(f"    {line}" for line in str(sample).splitlines())]
    return lines


def output_of(plan: Json | None, name: str) -> str | None:
    """Return the output path of the step of this name, such as ``code_lm/report``, if one is in the plan."""
    return next((str(step["output_path"]) for step in plan_steps(plan) if step["name"].endswith(f"/{name}")), None)


def last_message(log: str) -> str:
    """Return the newest line of a log about the task, without its timestamp and level."""
    messages = (_without_prefix(line).strip() for line in _lines_of_the_task(log))
    *_, newest = ("", *(message for message in messages if message and not FINISHED.fullmatch(message)))
    return single_line(newest, MESSAGE_WIDTH)


def first_failed(instances: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the task whose failure ended the run: the failed task that ended first."""
    failed = [instance for instance in instances if instance["state"] == "failed"]
    return min(failed, key=lambda instance: instance.get("end_date") or "", default=None)


def last_lines(log: str, count: int = 30) -> list[str]:
    """Return the newest lines of a log about the task."""
    return list(_lines_of_the_task(log))[-count:]


def _step_row(step: Json, instance: Json) -> StepRow:
    reused = step["decision"] == "REUSE"
    return StepRow(
        name=step["name"],
        version=step["hash"],
        decision=step["decision"],
        state=_state(instance, {instance.get("task_id")} if reused else set()),
        seconds=None if reused else instance.get("duration"),
        output_path=step["output_path"],
    )


def _in_plan_order(instances: Sequence[Json], plan: Json | None) -> Iterator[Json]:
    places = {step["task_id"]: place for place, step in enumerate(plan_steps(plan))}
    ordered = sorted(instances, key=lambda instance: places.get(instance["task_id"], -1))
    yield from sorted(ordered, key=lambda instance: not is_plan(instance["task_id"]))


def _state(instance: Json, reused: set[Any]) -> str:
    state = instance.get("state") or WAITING
    return REUSED if state == "skipped" and instance.get("task_id") in reused else str(state)


def _seconds(instance: Json, now: datetime) -> float | None:
    if instance.get("state") in AT_WORK and instance.get("start_date"):
        started = datetime.fromisoformat(instance["start_date"])
        return max(0.0, (now - started).total_seconds())
    return instance.get("duration") if instance.get("state") != "skipped" else None


def _lines_of_the_task(log: str) -> Iterator[str]:
    """Yield the lines that are not Airflow's own, without the UI's group markers."""
    in_airflows_group = False
    for line in log.splitlines():
        message = _without_prefix(line)
        if message.startswith("::group::"):
            in_airflows_group = message.removeprefix("::group::") in AIRFLOWS_GROUPS
        elif message.startswith("::endgroup::"):
            in_airflows_group = False
        elif not in_airflows_group and not AIRFLOWS_OWN.fullmatch(message):
            yield line


def _without_prefix(line: str) -> str:
    """Drop a prefix like ``2026-01-31T03:00:00.123456Z info`` from a line."""
    stamp, _, rest = line.partition(" ")
    if not _is_timestamp(stamp):
        return line
    return rest.partition(" ")[2]


def _is_timestamp(word: str) -> bool:
    try:
        datetime.fromisoformat(word)
    except ValueError:
        return False
    return "T" in word


def _coloured(state: str) -> Text:
    return Text(state, style=COLOURS.get(state, ""))


def _number(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}"
