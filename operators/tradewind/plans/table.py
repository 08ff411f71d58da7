"""The plan as a table of plain text that reads well in a task log."""

from __future__ import annotations

from collections.abc import Sequence

from tradewind.plans.plan import Decision, Plan


def plan_table(plan: Plan) -> str:
    """One line a step, with a summary line below."""
    rows = [("step", "version", "decision", "reason", "output path")]
    rows += [(step.name, step.hash, step.decision.value, step.reason, step.output_path) for step in plan.steps]
    counts = {decision: len(plan.decided(decision)) for decision in Decision}
    summary = ", ".join(f"{count} {decision.value}" for decision, count in counts.items() if count)
    return "\n".join([*_aligned(rows), f"{len(plan.steps)} steps: {summary}"])


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
