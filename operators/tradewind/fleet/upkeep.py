"""Upkeep report: findings about the fleet's clusters, as one table, and nodes of no cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from tradewind.cloud_tpu.resources import TpuNode
from tradewind.fleet.clusters import CLUSTER_LABEL, Fleet
from tradewind.fleet.lock import FoundLock
from tradewind.records.parsing import FLAG, RAW_TEXT, FieldType, is_count, list_of, one_of, parse_fields
from tradewind.text import format_columns

UPKEEP_ASSET: Final = "tradewind_fleet_maintenance"
"""Asset whose events have the reports as their extra."""
_HEADS: Final = ("cluster", "about", "name", "state", "done")


class Subject(StrEnum):
    """What a line of the report is about."""

    SLICE = "slice"
    JOB = "job"
    HOST = "host"
    NODE = "node of no cluster"
    OPERATION = "operation"


@dataclass(frozen=True)
class UpkeepLine:
    """One finding.

    Attributes:
        cluster: The cluster's name; for a node of no cluster, the name in its label.
        about: Kind of the subject.
        name: Name of the slice, job, host or node.
        state: The state that was found.
        done: What upkeep did about it, or would do without a dry run.
        needs_person: Whether no further upkeep will repair it.
        is_well: Whether it is in order.
    """

    cluster: str
    about: Subject
    name: str
    state: str
    done: str = ""
    needs_person: bool = False
    is_well: bool = False


@dataclass(frozen=True)
class UncheckedItem:
    """A cluster or a zone that could not be checked, and why."""

    where: str
    why: str


def slice_lines(cluster: str, repair: Mapping[str, Any], *, is_dry: bool = False) -> Iterator[UpkeepLine]:
    """Yield the lines for the XCom of a ``TpuSliceRecoverySensor``."""
    stuck = {text.partition(":")[0] for text in repair.get("stuck", ())}
    for row in repair.get("slices", ()):
        name, state = row["slice"], f"{row['verdict']}: {row['reason']}"
        yield UpkeepLine(cluster, Subject.SLICE, name, state, row["done"], name in stuck, row["verdict"] == "works")


def job_lines(cluster: str, stopped: Iterable[str], *, is_dry: bool = False) -> Iterator[UpkeepLine]:
    """Yield the lines for the XCom of a ``RayReconcileOperator``."""
    for job in stopped:
        yield UpkeepLine(cluster, Subject.JOB, job, "its task has ended", "would be stopped" if is_dry else "stopped")


def host_lines(cluster: str, rows: Iterable[Mapping[str, Any]], *, is_dry: bool = False) -> Iterator[UpkeepLine]:
    """Yield the lines for the result of ``sweep_hosts``."""
    for row in rows:
        disk = "" if row["free_disk_percent"] is None else f", {row['free_disk_percent']} % of its disk free"
        state = f"{row['slice']}: {row['use']}{disk}" + (f"; {row['problem']}" if row["problem"] else "")
        done, is_bad = "; ".join(row["done"]), bool(row["problem"])
        is_well = not (done or is_bad or row["use"] == "gone")
        yield UpkeepLine(cluster, Subject.HOST, row["host"], state, done, is_bad, is_well)


@dataclass(frozen=True)
class LockNote:
    """Content of a cluster's lock, for upkeep.

    Attributes:
        operation: The running or interrupted operation; empty if the lock is invalid.
        sentence: The same as a sentence.
        is_left_out: Whether upkeep leaves the cluster alone.
        needs_person: Whether a user must act first.
    """

    cluster: str
    operation: str
    sentence: str
    is_left_out: bool
    needs_person: bool

    @staticmethod
    def of(cluster: str, found: FoundLock | None, now: float) -> LockNote | None:
        """Return the note of a lock; None if no operation runs or was interrupted.

        During a restart of Ray, working slices look dead, so upkeep leaves a locked cluster alone.
        """
        if found is None or not (found.is_held or found.is_interrupted):
            return None
        sentence = found.sentence(cluster, now)
        return LockNote(cluster, found.marker.operation, sentence, found.is_held, not found.is_held)

    @staticmethod
    def unreadable(cluster: str, why: object) -> LockNote:
        """Return the note of an invalid lock: it is unknown whether a command is changing the cluster."""
        return LockNote(cluster, "", f"Unknown whether a command is changing it: {why}", True, True)

    def line(self) -> UpkeepLine:
        """Return the line for the report."""
        name, done = self.operation or "-", "left alone" if self.is_left_out else ""
        return UpkeepLine(self.cluster, Subject.OPERATION, name, self.sentence, done, self.needs_person)


def orphan_lines(fleet: Fleet, project: str, zone: str, nodes: Iterable[TpuNode]) -> Iterator[UpkeepLine]:
    """Yield the TPU nodes of Ray's autoscaler in a zone whose cluster is not in the fleet file.

    Users delete them: the cluster may be a user's own.
    """
    known = {cluster.name for cluster in fleet.clusters.values() if (cluster.project, cluster.zone) == (project, zone)}
    for node in nodes:
        cluster = node.labels.get(CLUSTER_LABEL)
        if cluster is not None and cluster not in known:
            yield UpkeepLine(cluster, Subject.NODE, node.name, f"{node.state} in {project}, {zone}", needs_person=True)


@dataclass(frozen=True)
class UpkeepReport:
    """Everything that one round of upkeep found.

    Attributes:
        lines: All findings.
        unseen: What could not be checked.
    """

    lines: Sequence[UpkeepLine]
    unseen: Sequence[UncheckedItem] = ()

    @property
    def needs_attention(self) -> list[str]:
        """Findings that upkeep will not repair, a sentence each."""
        return [f"{line.cluster}, {line.about} {line.name}: {line.state}" for line in self.lines if line.needs_person]

    def to_json(self) -> dict[str, Any]:
        """Return JSON for ``PastReport``: counts, findings that need a user, unchecked items, and all news."""
        counts: dict[str, Counter[str]] = {}
        for line in self.lines:
            counts.setdefault(line.cluster, Counter())[line.about] += 1
        return {
            "counts": {cluster: dict(found) for cluster, found in sorted(counts.items())},
            "news": [asdict(line) for line in self.lines if not line.is_well],
            "for_a_person": self.needs_attention,
            "unseen": [f"{unseen.where}: {unseen.why}" for unseen in self.unseen],
        }

    def table(self) -> str:
        """Return the news as a table, and the rest in one line."""
        news = [line for line in self.lines if not line.is_well]
        rows = [(line.cluster, line.about.value, line.name, line.state, line.done) for line in news]
        texts = format_columns([_HEADS, *rows]) if rows else []
        texts += [f"{unseen.where}: {unseen.why}" for unseen in self.unseen]
        well = Counter(line.about for line in self.lines if line.is_well)
        if well:
            texts.append(f"All is well with {', '.join(f'{count} {about}s' for about, count in well.items())}.")
        return "\n".join(texts) or "There is nothing to look after."


@dataclass(frozen=True)
class PastReport:
    """A report as it was stored.

    Attributes:
        at: Time of the report, in seconds since the epoch.
        counts: Cluster → kind of subject → number of findings.
        lines: Findings that are not in order.
        for_a_person: Findings that need a user, a sentence each.
        unseen: What could not be checked, and why.
    """

    at: float
    counts: Mapping[str, Mapping[str, int]]
    lines: Sequence[UpkeepLine]
    for_a_person: Sequence[str]
    unseen: Sequence[str]

    @property
    def clusters(self) -> frozenset[str]:
        """Clusters with findings."""
        return frozenset(self.counts)

    @staticmethod
    def from_json(fields: Any, at: float) -> PastReport:
        """Parse the JSON of a report.

        Raises:
            RecordFormatError: It is no report.
        """
        known = parse_fields(fields, _REPORT_KINDS, _REPORT_KINDS.keys())
        lines = []
        for line in known["news"]:
            found = parse_fields(line, _LINE_KINDS, ("cluster", "about", "name", "state"), whose="a line's")
            lines.append(UpkeepLine(**{**found, "about": Subject(found["about"])}))
        return PastReport(at, known["counts"], lines, known["for_a_person"], known["unseen"])


def _is_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(counts, dict) and all(map(is_count, counts.values())) for counts in value.values()
    )


_REPORT_KINDS: Final = {
    "counts": FieldType(_is_counts, "counts by cluster"),
    "news": FieldType(lambda value: isinstance(value, list), "a list"),
    "for_a_person": list_of(RAW_TEXT),
    "unseen": list_of(RAW_TEXT),
}
_LINE_KINDS: Final = {
    "cluster": RAW_TEXT,
    "about": one_of(subject.value for subject in Subject),
    "name": RAW_TEXT,
    "state": RAW_TEXT,
    "done": RAW_TEXT,
    "needs_person": FLAG,
    "is_well": FLAG,
}
