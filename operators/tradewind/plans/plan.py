"""The plan of a run: for every step a decision and its reason, as the task that made it hands it to all others.

It travels as an XCom, so what comes back is input and parsed like a record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

from tradewind.records.parsing import (
    COUNT,
    FLAG,
    RAW_TEXT,
    TEXT,
    FieldType,
    RecordFormatError,
    list_of,
    one_of,
    parse_fields,
)
from tradewind.steps import ResolvedStep
from tradewind.steps.paths import version_name


class BadPlanError(ValueError):
    """What stands in place of a plan is none, or not a whole one."""

    def __init__(self, flaw: Exception | str) -> None:
        super().__init__(f"The plan of this run cannot be read, because {flaw}. Clear the plan task to make it anew.")


class Decision(Enum):
    """What happens to a step in this run."""

    RUN = "RUN"
    """It is started; its output is not there, or it is forced."""
    REUSE = "REUSE"
    """Its output is there; nothing is started."""
    WAIT = "WAIT"
    """Somebody else is at work on it; its task waits for that end and reuses the result."""
    BLOCKED = "BLOCKED"
    """It, or an input of it, failed before, and failed steps are not to be run again; or its lease cannot be read."""
    PRUNED = "PRUNED"
    """Its output is not there, but nothing that runs would read it; nothing is started."""


@dataclass(frozen=True)
class PlannedStep:
    """One line of a plan.

    Attributes:
        attempt: The newest attempt that the plan knew of; 0 if there was none.
        is_forced: It is made again because somebody asked for that, not because its output is missing.
        is_damaged: A full check found that the output of ``attempt`` is not as it was committed.
        producer: Who made the output that is reused, or is making the one that is waited for.
        estimate: What running it is likely to cost, in words.
        place: What it runs on, in words; None if it names no resources.
    """

    task_id: str
    name: str
    hash: str
    output_path: str
    decision: Decision
    reason: str
    attempt: int = 0
    is_forced: bool = False
    is_damaged: bool = False
    producer: str | None = None
    estimate: str | None = None
    place: str | None = None

    @property
    def version_name(self) -> str:
        """The step and its version as people refer to them."""
        return version_name(self.name, self.hash)

    def to_json(self) -> dict[str, Any]:
        """This line as XComs hold it."""
        return asdict(self) | {"decision": self.decision.value}

    @staticmethod
    def from_json(fields: object) -> PlannedStep:
        """The line in an XCom.

        Raises:
            BadPlanError: It is none.
        """
        try:
            known = parse_fields(fields, _KINDS_OF_A_LINE, _REQUIRED_OF_A_LINE, whose="a step's")
        except RecordFormatError as flaw:
            raise BadPlanError(flaw) from None
        return PlannedStep(**{**known, "decision": Decision(known["decision"])})


@dataclass(frozen=True)
class Plan:
    """The decisions for all steps of a run, in execution order.

    Attributes:
        warnings: What a person should know about the selection and the decisions.
        estimate: What all steps that run are likely to cost, in words.
    """

    prefix: str
    steps: tuple[PlannedStep, ...]
    warnings: tuple[str, ...] = ()
    estimate: str | None = None

    def decided(self, decision: Decision) -> list[PlannedStep]:
        """The steps with this decision."""
        return [step for step in self.steps if step.decision is decision]

    def of_task(self, task_id: str) -> PlannedStep | None:
        """The line of one task."""
        return next((step for step in self.steps if step.task_id == task_id), None)

    def to_json(self) -> dict[str, Any]:
        """The plan as the ``plan`` task's XCom holds it; ``docs/plan-schema.json`` describes it."""
        return {
            "prefix": self.prefix,
            "steps": [step.to_json() for step in self.steps],
            "warnings": list(self.warnings),
            "estimate": self.estimate,
        }

    @staticmethod
    def from_json(fields: object) -> Plan:
        """The plan in an XCom.

        Raises:
            BadPlanError: It is none.
        """
        try:
            known = parse_fields(fields, _KINDS, ("prefix", "steps"))
        except RecordFormatError as flaw:
            raise BadPlanError(flaw) from None
        lines = tuple(map(PlannedStep.from_json, known["steps"]))
        return Plan(known["prefix"], lines, tuple(known.get("warnings", ())), known.get("estimate"))


_KINDS: Final = {
    "prefix": TEXT,
    "steps": FieldType(lambda value: isinstance(value, list), "a list"),
    "warnings": list_of(RAW_TEXT),
    "estimate": RAW_TEXT.or_null(),
}
_KINDS_OF_A_LINE: Final = {
    "task_id": TEXT,
    "name": TEXT,
    "hash": TEXT,
    "output_path": TEXT,
    "decision": one_of(each.value for each in Decision),
    "reason": RAW_TEXT,
    "attempt": COUNT,
    "is_forced": FLAG,
    "is_damaged": FLAG,
    "producer": RAW_TEXT.or_null(),
    "estimate": RAW_TEXT.or_null(),
    "place": RAW_TEXT.or_null(),
}
_REQUIRED_OF_A_LINE: Final = ("task_id", "name", "hash", "output_path", "decision", "reason")

# The plan in pieces. A step's task reads only the piece with its own line, so that a run of N steps does not read
# N lines N times.

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


# What the task of a step outside of any plan tells of it, for those who look at the task.

UNPLANNED_KEY: Final = "tradewind_step"
"""Key of the task's XCom."""


@dataclass(frozen=True)
class UnplannedStep:
    """Which version a task makes, and where; a plan's line says the same of its steps."""

    name: str
    hash: str
    output_path: str

    @staticmethod
    def of(step: ResolvedStep) -> UnplannedStep:
        """What is told of ``step``."""
        return UnplannedStep(step.name, step.hash, step.output_path)

    def to_json(self) -> dict[str, str]:
        """This step as its XCom holds it."""
        return asdict(self)

    @staticmethod
    def from_json(fields: Any) -> UnplannedStep | None:
        """The step in an XCom; None if it is nothing that ``to_json`` gives."""
        names = [each.name for each in dataclasses.fields(UnplannedStep)]
        values = [fields.get(name) for name in names] if isinstance(fields, Mapping) else [None]
        return UnplannedStep(*values) if all(isinstance(value, str) for value in values) else None
