"""What the task of a step outside of any plan tells of it, for those who look at the task."""

from __future__ import annotations

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
        return UnplannedStep(step.name, step.hash, step.output_path)

    def to_json(self) -> dict[str, str]:
        """This step as its XCom holds it."""
        return asdict(self)

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> UnplannedStep:
        """The step in an XCom."""
        return UnplannedStep(str(fields["name"]), str(fields["hash"]), str(fields["output_path"]))
