"""What the task of a step outside of any plan tells of it, for those who look at the task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from tradewind.steps import ResolvedStep

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
