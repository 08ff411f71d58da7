"""The plan in pieces. A step's task reads only the piece with its own line, so that a run of N steps does not read
N lines N times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tradewind.plans.plan import BadPlanError, Plan, PlannedStep

CHUNK: Final = 500
"""How many lines a piece holds: what each task reads of a plan, however long it is. Every piece costs the ``plan`` task
a request, which takes longer than reading a few hundred lines.
"""


def chunk_key(task_index: int) -> str:
    """The XCom key of the piece with the plan's line number ``task_index``, counted from 0."""
    return f"plan_{task_index // CHUNK}"


def chunks(plan: Plan) -> dict[str, dict[str, Any]]:
    """All pieces of ``plan``, by key."""
    return {
        chunk_key(start): {"steps": [step.to_json() for step in plan.steps[start : start + CHUNK]]}
        for start in range(0, len(plan.steps), CHUNK)
    }


def planned_in(chunk_json: object, task_id: str) -> PlannedStep | None:
    """The line of one task in a piece.

    Raises:
        BadPlanError: It is no piece of a plan, or that line is none.
    """
    lines = chunk_json.get("steps") if isinstance(chunk_json, Mapping) else None
    if not isinstance(lines, list):
        raise BadPlanError("it holds no steps")
    mine = next((line for line in lines if isinstance(line, Mapping) and line.get("task_id") == task_id), None)
    return None if mine is None else PlannedStep.from_json(mine)
