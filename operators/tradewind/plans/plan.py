"""The plan of a run: for every step a decision and its reason, from the steps and what the store says of them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from tradewind.records.status import Status
from tradewind.steps import ResolvedStep


class Decision(Enum):
    """What happens to a step in this run."""

    RUN = "RUN"
    """It is started, or its running attempt is followed."""
    REUSE = "REUSE"
    """Its output is there; nothing is started."""
    PRUNED = "PRUNED"
    """Its output is not there, but only finished steps would read it; nothing is started."""


@dataclass(frozen=True)
class PlannedStep:
    """One line of a plan."""

    task_id: str
    name: str
    hash: str
    output_path: str
    decision: Decision
    reason: str

    @property
    def version(self) -> str:
        """The step and its version as people refer to them."""
        return f"{self.name}-{self.hash}"


@dataclass(frozen=True)
class Plan:
    """The decisions for all steps of a run, in execution order."""

    prefix: str
    steps: tuple[PlannedStep, ...]

    def decided(self, decision: Decision) -> list[PlannedStep]:
        """The steps with this decision."""
        return [step for step in self.steps if step.decision is decision]

    def of_task(self, task_id: str) -> PlannedStep | None:
        """The line of one task."""
        return next((step for step in self.steps if step.task_id == task_id), None)

    def to_json(self) -> dict[str, Any]:
        """The plan as the ``plan`` task's XCom holds it."""
        return {
            "prefix": self.prefix,
            "steps": [asdict(step) | {"decision": step.decision.value} for step in self.steps],
        }

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Plan:
        """The plan in an XCom."""
        steps = (PlannedStep(**{**step, "decision": Decision(step["decision"])}) for step in fields["steps"])
        return Plan(fields["prefix"], tuple(steps))


StatusReader = Callable[[Sequence[str]], Mapping[str, Status]]


def make_plan(
    prefix: str,
    tasks: Iterable[tuple[str, ResolvedStep]],
    wanted: Container[str],
    read_statuses: StatusReader,
) -> Plan:
    """Decide for each ``(task id, step)``, which come in execution order.

    ``wanted`` are the tasks whose outputs are asked for; what they do not need is not run. ``read_statuses`` is called
    once, with all output paths.
    """
    tasks = list(tasks)
    statuses = read_statuses([step.output_path for _, step in tasks])
    needed = {step for task_id, step in tasks if task_id in wanted}
    for _, step in reversed(tasks):
        if step in needed and statuses.get(step.output_path) is not Status.SUCCESS:
            needed.update(step.dependencies)
    return Plan(
        prefix, tuple(_decide(id_, step, statuses.get(step.output_path), step in needed) for id_, step in tasks)
    )


_REASONS = {
    None: "never ran",
    Status.FAILED: "failed before",
    Status.DEP_FAILED: "an input failed before",
    Status.RUNNING: "started before, not finished",
}


def _decide(task_id: str, step: ResolvedStep, status: Status | None, is_needed: bool) -> PlannedStep:
    if status is Status.SUCCESS:
        decision, reason = Decision.REUSE, "finished before"
    elif is_needed:
        decision, reason = Decision.RUN, _REASONS[status]
    else:
        decision, reason = Decision.PRUNED, f"{_REASONS[status]}; feeds only finished steps"
    return PlannedStep(task_id, step.name, step.hash, step.output_path, decision, reason)
