"""The plan of a run: per step a decision and its reason, passed from ``plan`` to the other tasks.

The plan travels as an XCom, so reading parses and validates it like a record. It is stored in chunks: a step's task
reads only the chunk with its own line, so a run of N steps does not read N lines N times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
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
    """The value is not a plan, or an incomplete one."""

    def __init__(self, problem: Exception | str) -> None:
        super().__init__(f"The plan of this run cannot be read, because {problem}. Clear the plan task to plan again.")


class Decision(Enum):
    """What a run does with a step."""

    RUN = "RUN"
    """It starts: its output is missing, or it is forced."""
    REUSE = "REUSE"
    """Its output exists; nothing starts."""
    WAIT = "WAIT"
    """Another run is making it; its task waits for that attempt and reuses the result."""
    BLOCKED = "BLOCKED"
    """It or an input failed before and failed steps are not rerun, or its lease cannot be read."""
    PRUNED = "PRUNED"
    """Its output is missing, but no running step would read it; nothing starts."""


@dataclass(frozen=True)
class PlannedStep:
    """One line of a plan.

    Attributes:
        attempt: The newest attempt when the plan was made; 0 if there was none.
        is_forced: A user requested the rerun; the output is not missing.
        is_damaged: A full check found that the output of ``attempt`` differs from its manifest.
        producer: Producer of the output that is reused or awaited.
        estimate: Expected cost of running it, in words.
        place: Its resources in words; None if it names none.
        inputs: Task ids of the steps of the plan that it reads, each once.
        producer_dag: The DAG of the run that is the producer, if a run is; likewise ``producer_run``.
        earlier: Hash of the nearest earlier version, if the plan compared one.
        changed_inputs: Names of the inputs, direct or not, whose own config differs from that version's.
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
    inputs: tuple[str, ...] = ()
    producer_dag: str | None = None
    producer_run: str | None = None
    earlier: str | None = None
    changed_inputs: tuple[str, ...] = ()

    @property
    def version_name(self) -> str:
        """Name and hash of the step, as shown to users."""
        return version_name(self.name, self.hash)

    def to_json(self) -> dict[str, Any]:
        """Return this line as it is stored in XComs."""
        lists = {"inputs": list(self.inputs), "changed_inputs": list(self.changed_inputs)}
        return {**vars(self), "decision": self.decision.value, **lists}

    @staticmethod
    def from_json(fields: object) -> PlannedStep:
        """Parse the line in an XCom.

        Raises:
            BadPlanError: It is not a plan's line.
        """
        try:
            known = parse_fields(fields, _LINE_FIELDS, _REQUIRED_LINE_FIELDS, whose="a step's")
        except RecordFormatError as error:
            raise BadPlanError(error) from None
        lists = {name: tuple(known.get(name, ())) for name in ("inputs", "changed_inputs")}
        return PlannedStep(**{**known, "decision": Decision(known["decision"]), **lists})


@dataclass(frozen=True)
class Plan:
    """The decisions for all steps of a run, in execution order.

    Attributes:
        warnings: Notes for the user about the selection and the decisions.
        estimate: Expected cost of all steps that run, in words.
    """

    prefix: str
    steps: tuple[PlannedStep, ...]
    warnings: tuple[str, ...] = ()
    estimate: str | None = None

    def decided(self, decision: Decision) -> list[PlannedStep]:
        """Return the steps with this decision."""
        return [step for step in self.steps if step.decision is decision]

    def of_task(self, task_id: str) -> PlannedStep | None:
        """Return the line of one task."""
        return next((step for step in self.steps if step.task_id == task_id), None)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as the ``plan`` task's XCom stores it; ``docs/plan-schema.json`` describes it."""
        return {
            "prefix": self.prefix,
            "steps": [step.to_json() for step in self.steps],
            "warnings": list(self.warnings),
            "estimate": self.estimate,
        }

    @staticmethod
    def from_json(fields: object) -> Plan:
        """Parse the plan in an XCom.

        Raises:
            BadPlanError: It is not a plan.
        """
        try:
            known = parse_fields(fields, _PLAN_FIELDS, ("prefix", "steps"))
        except RecordFormatError as error:
            raise BadPlanError(error) from None
        lines = tuple(map(PlannedStep.from_json, known["steps"]))
        return Plan(known["prefix"], lines, tuple(known.get("warnings", ())), known.get("estimate"))


_PLAN_FIELDS: Final = {
    "prefix": TEXT,
    "steps": FieldType(lambda value: isinstance(value, list), "a list"),
    "warnings": list_of(RAW_TEXT),
    "estimate": RAW_TEXT.or_null(),
}
_LINE_FIELDS: Final = {
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
    "inputs": list_of(TEXT),
    "producer_dag": RAW_TEXT.or_null(),
    "producer_run": RAW_TEXT.or_null(),
    "earlier": RAW_TEXT.or_null(),
    "changed_inputs": list_of(RAW_TEXT),
}
_REQUIRED_LINE_FIELDS: Final = ("task_id", "name", "hash", "output_path", "decision", "reason")


CHUNK: Final = 500
"""Lines per chunk: what each task reads of a plan, however long it is.

Each chunk costs the ``plan`` task one request, which takes longer than reading a few hundred lines.
"""


def chunk_key(task_index: int) -> str:
    """Return the XCom key of the chunk with the plan's line ``task_index``, counted from 0."""
    return f"plan_{task_index // CHUNK}"


def chunks(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return all chunks of ``plan``, by key. Their lines state no inputs, which no task needs."""
    lines = [replace(step, inputs=()).to_json() for step in plan.steps]
    return {chunk_key(start): {"steps": lines[start : start + CHUNK]} for start in range(0, len(lines), CHUNK)}


def planned_in(chunk_json: object, task_id: str) -> PlannedStep | None:
    """Return the line of one task in a chunk.

    Raises:
        BadPlanError: It is not a chunk of a plan, or the line is invalid.
    """
    lines = chunk_json.get("steps") if isinstance(chunk_json, Mapping) else None
    if not isinstance(lines, list):
        raise BadPlanError("it has no steps")
    found = (line for line in lines if isinstance(line, Mapping) and line.get("task_id") == task_id)
    return next(map(PlannedStep.from_json, found), None)


UNPLANNED_KEY: Final = "tradewind_step"
"""Key of the XCom that describes a task's step where there is no plan."""


@dataclass(frozen=True)
class UnplannedStep:
    """Version and output path of a task's step outside any plan; a plan's line states the same."""

    name: str
    hash: str
    output_path: str

    @staticmethod
    def of(step: ResolvedStep) -> UnplannedStep:
        """Describe ``step``."""
        return UnplannedStep(step.name, step.hash, step.output_path)

    def to_json(self) -> dict[str, str]:
        """Return this step as its XCom stores it."""
        return asdict(self)

    @staticmethod
    def from_json(fields: Any) -> UnplannedStep | None:
        """Parse the step in an XCom; None if ``to_json`` did not write it."""
        names = [each.name for each in dataclasses.fields(UnplannedStep)]
        values = [fields.get(name) for name in names] if isinstance(fields, Mapping) else [None]
        return UnplannedStep(*values) if all(isinstance(value, str) for value in values) else None
