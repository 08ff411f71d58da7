"""What the demo shows, as functions from plain data to text and tables: no clock, no network, no terminal in here.

A step's place in a table is its place in the plan; tasks that the plan does not know come before it, as the plan's own
task does. A task that the plan skipped is called "reused", because that is what happened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.table import Table
from rich.text import Text

PLAN_TASK = "plan"
EVALUATE_STEP = "code_lm/evaluate"
REPORT_STEP = "code_lm/report"
MESSAGE_WIDTH = 90

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
"""What the triggerer says of itself in the log of a deferred task."""
FINISHED = re.compile(r"Step '.*' is finished: .*")
"""What the step's task says at its end, and the last table says too."""
AT_WORK = frozenset({"running", "deferred"})
ENDED = frozenset({"success", "failed"})

Json = Mapping[str, Any]


@dataclass(frozen=True)
class TaskView:
    """One line of the live table."""

    task_id: str
    state: str
    seconds: float | None
    message: str = ""

    def line(self) -> str:
        """The same for a log file: what changed, in one line."""
        seconds = "" if self.seconds is None else f" ({self.seconds:.1f} s)"
        message = f": {self.message}" if self.message else ""
        return f"{self.task_id} {self.state}{seconds}{message}"


@dataclass(frozen=True)
class StepRow:
    """One line of the last table: what became of a step."""

    name: str
    version: str
    decision: str
    state: str
    seconds: float | None
    output_path: str


def plan_steps(plan: Json | None) -> list[Json]:
    """The steps of the plan's XCom in execution order; none as long as there is no plan."""
    return list(plan["steps"]) if plan else []


def task_views(
    instances: Sequence[Json], plan: Json | None, messages: Mapping[str, str], now: datetime
) -> list[TaskView]:
    """The run's tasks in the order of the plan, with their last messages."""
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
    """The tasks whose log may say something new: those at work, and each that has ended since, with its last words."""
    known = {view.task_id: view.state for view in before}
    return [
        instance
        for instance in instances
        if instance["state"] in AT_WORK
        or (instance["state"] in ENDED and instance["state"] != known.get(instance["task_id"]))
    ]


def state_changes(before: Sequence[TaskView], after: Sequence[TaskView]) -> list[str]:
    """One line for every task whose state is another one than before; that a task waits is no news."""
    known = {view.task_id: view.state for view in before}
    return [view.line() for view in after if view.state != known.get(view.task_id, WAITING)]


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


def reuse_sentence(rows: Sequence[StepRow]) -> str:
    reused = sum(row.decision == "REUSE" for row in rows)
    return f"{reused} of {len(rows)} steps reused."


def evaluation_lines(results: Json) -> list[str]:
    """What the step ``evaluate`` found, for a person: the loss, and a sample of what the model writes."""
    checkpoint = results["checkpoint"]
    lines = [f"Validation loss {checkpoint['loss']:.4f} ({checkpoint['bpb']:.4f} bits per byte)"]
    if sample := results.get("sample"):
        lines += ["The model writes:", *(f"    {line}" for line in str(sample).splitlines())]
    return lines


def output_of(plan: Json | None, name: str) -> str | None:
    """Where the step of this name has its output, if the plan has such a step."""
    return next((str(step["output_path"]) for step in plan_steps(plan) if step["name"] == name), None)


def last_message(log: str) -> str:
    """The newest line of a task log that says something about the task, without its timestamp and level."""
    messages = (_without_prefix(line).strip() for line in _lines_of_the_task(log))
    *_, newest = ("", *(message for message in messages if message and not FINISHED.fullmatch(message)))
    return newest if len(newest) <= MESSAGE_WIDTH else f"{newest[: MESSAGE_WIDTH - 1]}…"


def first_failed(instances: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The task whose failure ended the run: of all failed ones, the one that ended first."""
    failed = [instance for instance in instances if instance["state"] == "failed"]
    return min(failed, key=lambda instance: instance.get("end_date") or "", default=None)


def last_lines(log: str, count: int = 30) -> list[str]:
    """The newest lines of a task log that are about the task."""
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
    yield from (instance for instance in ordered if instance["task_id"] == PLAN_TASK)
    yield from (instance for instance in ordered if instance["task_id"] != PLAN_TASK)


def _state(instance: Json, reused: set[Any]) -> str:
    state = instance.get("state") or WAITING
    return REUSED if state == "skipped" and instance.get("task_id") in reused else str(state)


def _seconds(instance: Json, now: datetime) -> float | None:
    if instance.get("state") in AT_WORK and instance.get("start_date"):
        started = datetime.fromisoformat(instance["start_date"])
        return max(0.0, (now - started).total_seconds())
    return instance.get("duration") if instance.get("state") != "skipped" else None


def _lines_of_the_task(log: str) -> Iterator[str]:
    """Every line that is not Airflow's own, without the marks of groups, which are for the UI."""
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
    """Drop ``2026-01-31T03:00:00.123456Z info`` from the start of a line, if it is there."""
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
