"""What one pass of a repair found and did, as values and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tradewind.cloud_tpu.repair_terms import Finding, Verdict


@dataclass(frozen=True)
class RepairReport:
    """What one pass found and did.

    Attributes:
        findings: Every slice of the cluster, as it was found.
        done: What was done about some of them, in words, by name.
        is_dry: Whether nothing was to be done.
    """

    findings: Sequence[Finding]
    done: Mapping[str, str] = field(default_factory=dict)
    is_dry: bool = False

    @property
    def is_well(self) -> bool:
        """Whether every slice worked when the pass began."""
        return all(one.verdict is Verdict.WORKS for one in self.findings)

    @property
    def for_a_person(self) -> list[Finding]:
        """What no pass will bring back."""
        return [one for one in self.findings if one.needs_person]

    @property
    def is_over(self) -> bool:
        """Whether further passes would not change anything."""
        return self.is_dry or all(one.verdict is Verdict.WORKS or one.needs_person for one in self.findings)

    def rows(self) -> list[dict[str, str]]:
        """The table as JSON: slice, type, hosts, verdict, reason, done."""
        return [
            {
                "slice": one.name,
                "type": one.slice_type,
                "hosts": one.hosts,
                "verdict": one.verdict.value,
                "reason": one.reason,
                "done": self.done.get(one.name, ""),
            }
            for one in self.findings
        ]

    def table(self) -> str:
        """The same to be read."""
        if not self.findings:
            return "There is no slice to look after."
        heads = ("slice", "type", "hosts", "verdict", "reason", "done")
        rows = [heads, *(tuple(row[head] for head in heads) for row in self.rows())]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return "\n".join(_line(row, widths) for row in rows)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
    return " ".join("  ".join([*cells, row[4] + (f" → {row[5]}" if row[5] else "")]).splitlines()).rstrip()
