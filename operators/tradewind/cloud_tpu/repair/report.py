"""What one pass of a repair found and did, as values and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tradewind.cloud_tpu.repair.terms import Finding, SliceHealth
from tradewind.text_table import aligned


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
        return all(finding.verdict is SliceHealth.WORKS for finding in self.findings)

    @property
    def for_a_person(self) -> list[Finding]:
        """What no pass will bring back."""
        return [finding for finding in self.findings if finding.needs_person]

    @property
    def is_over(self) -> bool:
        """Whether further passes would not change anything."""
        return self.is_dry or all(
            finding.verdict is SliceHealth.WORKS or finding.needs_person for finding in self.findings
        )

    def rows(self) -> list[dict[str, str]]:
        """The table as JSON: slice, type, hosts, verdict, reason, done."""
        return [
            {
                "slice": finding.name,
                "type": finding.slice_type,
                "hosts": finding.hosts,
                "verdict": finding.verdict.value,
                "reason": finding.reason,
                "done": self.done.get(finding.name, ""),
            }
            for finding in self.findings
        ]

    def table(self) -> str:
        """The same to be read."""
        if not self.findings:
            return "There is no slice to look after."
        heads = ("slice", "type", "hosts", "verdict")
        rows = [
            [*(row[head] for head in heads), " → ".join(filter(None, (row["reason"], row["done"])))]
            for row in self.rows()
        ]
        return "\n".join(aligned([[*heads, "reason → done"], *rows]))
