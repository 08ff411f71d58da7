"""The plan as a plain-text table for a task log: decision, step, reason.

Each step that runs, waits or is blocked has a line. In a big plan, consecutive steps that need nothing share a line.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from tradewind.plans.plan import Decision, Plan, PlannedStep
from tradewind.text import format_columns, pluralize, truncate_middle

WIDTH: Final = 200
MIN_REASON_WIDTH: Final = 60
BIG: Final = 200
"""Above this number of steps, rows of reused and pruned steps are summarised."""

_IDLE: Final = {Decision.REUSE: "reused", Decision.PRUNED: "pruned"}
_REASON: Final = 3
_ESTIMATE: Final = 4
_PLACE: Final = 5
_UNFINISHED: Final = (Decision.RUN, Decision.WAIT, Decision.BLOCKED)


def plan_table(plan: Plan) -> str:
    """Format one line per step, then counts, estimate and warnings."""
    lines = [step if isinstance(step, str) else _cells(step, plan.prefix) for step in _summarise(plan)]
    head = ["decision", "step", "version", "reason", "estimate", "runs on", f"output below {plan.prefix}"]
    rows = [head, *(line for line in lines if not isinstance(line, str))]
    table = iter(format_columns(_fit(rows)))
    body = [next(table), *(line if isinstance(line, str) else next(table) for line in lines)]
    return "\n".join([*body, *_last_lines(plan)])


def _summarise(plan: Plan) -> Iterator[PlannedStep | str]:
    if len(plan.steps) <= BIG:
        yield from plan.steps
        return
    for is_idle, group in groupby(plan.steps, lambda step: step.decision in _IDLE):
        steps = list(group)
        if is_idle and len(steps) > 1:
            counts = Counter(step.decision for step in steps)
            parts = [f"{counts[decision]} {word}" for decision, word in _IDLE.items() if counts[decision]]
            yield f"… {' and '.join(parts)} steps: see the Plan tab or XCom"
        else:
            yield from steps


def _cells(step: PlannedStep, prefix: str) -> list[str]:
    below = step.output_path.removeprefix(posixpath.join(prefix, ""))
    place = step.place or "" if step.decision in _UNFINISHED else ""
    return [step.decision.value, step.name, step.hash, step.reason, step.estimate or "", place, below]


def _fit(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Drop empty columns of estimates and places, and shorten reasons to fit the others."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    for index in (_PLACE, _ESTIMATE):
        if not any(columns[index][1:]):
            del columns[index]
    others = sum(max(map(len, column)) + 2 for i, column in enumerate(columns) if i != _REASON)
    room = max(MIN_REASON_WIDTH, WIDTH - others)
    columns[_REASON] = [truncate_middle(reason, room) for reason in columns[_REASON]]
    return [list(row) for row in zip(*columns, strict=True)]


def _last_lines(plan: Plan) -> list[str]:
    counts = Counter(step.decision for step in plan.steps)
    summary = ", ".join(f"{counts[decision]} {decision.value}" for decision in Decision if counts[decision])
    lines = [f"{pluralize(len(plan.steps), 'step')}: {summary}"]
    if plan.estimate:
        lines.append(f"Estimate: {plan.estimate}")
    return lines + [f"Warning: {warning}" for warning in plan.warnings]
