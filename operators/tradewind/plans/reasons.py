"""Reasons of a plan: what a record says of its step, and what changed since earlier versions.

Earlier versions of a step are beside its output, under the same name with another hash. All steps share one listing per
folder, and their leases and infos are read together. The number of requests is bounded: the plan names the steps that
it does not compare, and ``why`` compares one step. The nearest version has the fewest changes; among equals, the newest
wins.

Reasons are computed without I/O, except for ``read_attempt_summaries``, which reads the attempts' files of all steps
together.
"""

from __future__ import annotations

import datetime
import logging
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from tradewind.plans.differences import Change, Comparison, sentence
from tradewind.plans.version_records import Budget, CurrentVersion, StoredVersions, list_folders
from tradewind.records.attempts import AttemptError, BadAttemptError, attempt_path, parse_attempt
from tradewind.records.lease import Lease, Phase, UnreadableLeaseError
from tradewind.records.record import Record, RecordState, Status, read_leases
from tradewind.steps import ResolvedStep
from tradewind.storage import Roots, StorageError
from tradewind.storage.bounded_read import Content
from tradewind.storage.files import read_contents
from tradewind.text import format_producer, format_time, truncate_middle

logger = logging.getLogger(__name__)

NEVER_RAN: Final = "never ran"
Difference = tuple[str, tuple[Change, ...]]
"""The output path of an earlier version, and its differences from the current one."""
ReadErrorLine = Callable[[str], str | None]
"""Returns the first line of the error of the newest attempt at an output path, if known."""
MAX_ERROR_CHARS: Final = 160
MAX_SUMMARIES: Final = 1000
"""Per plan; further steps are reported without their errors."""
_VERSIONED_NAME = re.compile(r"(.*)-([0-9a-f]{6})", re.DOTALL)


@dataclass(frozen=True)
class SearchLimits:
    """Limits of a search.

    Attributes:
        compared: How many of a step's earlier versions are compared, the newest first.
        dated: How many ages are read to find the newest, where there are more versions than ``compared``.
        reported: How many of the nearest are reported, and so need their ages.
        requests: How many objects are read and folders listed for all steps together.
    """

    compared: int = 8
    dated: int = 64
    reported: int = 1
    requests: int = 2000


PLAN_LIMITS: Final = SearchLimits()
STEP_LIMITS: Final = SearchLimits(compared=50, dated=1000, reported=50, requests=20_000)


@dataclass(frozen=True)
class EarlierVersion:
    """A version that exists or existed in the store.

    Attributes:
        made_at: When its lease was last written, in seconds since 1970; None if unknown.
        changes: Differences from the current version, as root causes.
    """

    hash: str
    output_path: str
    made_at: float | None
    changes: tuple[Change, ...]

    @property
    def title(self) -> str:
        """Version name, as shown to users."""
        made_at = f" of {format_time(self.made_at)}" if self.made_at is not None else ""
        return f"version `{self.hash}`{made_at}"

    def to_json(self) -> dict[str, Any]:
        return {
            "hash": self.hash,
            "output_path": self.output_path,
            "made_at": self.made_at,
            "changes": [change.to_json() for change in self.changes],
        }


@dataclass(frozen=True)
class VersionHistory:
    """Earlier versions found.

    Attributes:
        nearest: Output path → its earlier versions, the nearest first.
        not_compared: Output paths whose earlier versions were not read, since the limit was reached.
    """

    nearest: Mapping[str, Sequence[EarlierVersion]]
    not_compared: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Explanations:
    """Reasons of a plan's steps.

    Attributes:
        reasons: Output path → reason, for each step that is not finished.
        nearest: Output path → the earlier version with which a new version was compared.
    """

    reasons: Mapping[str, str] = field(default_factory=dict)
    nearest: Mapping[str, EarlierVersion] = field(default_factory=dict)


def explain_new_versions(steps: Sequence[tuple[ResolvedStep, Record]], *, roots: Roots) -> Explanations:
    """Explain why steps run that never ran in this version; other steps are omitted.

    If the store does not answer, the plan has no such reasons.
    """
    new = [step for step, record in steps if record.state is RecordState.NONE]
    try:
        history = find_history(new, roots)
    except StorageError as error:
        logger.warning("Earlier versions could not be read, so the plan does not state what changed: %s", error)
        return Explanations()
    nearest = {path: found[0] for path, found in history.nearest.items() if found}
    return Explanations({step.output_path: _reason(step, history) for step in new}, nearest)


def find_history(
    steps: Sequence[CurrentVersion],
    roots: Roots,
    limits: SearchLimits = PLAN_LIMITS,
    *,
    inputs: Iterable[CurrentVersion] = (),
    expected: Mapping[str, str] = MappingProxyType({}),
) -> VersionHistory:
    """Find the earlier versions of ``steps`` and compare them.

    Args:
        roots: Where paths that records name may be read.
        inputs: Versions that the steps read, directly or not; those of resolved steps are known.
        expected: Of further inputs, ``name-hash`` → the output path with the record.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    budget = Budget(limits.requests)
    siblings = _find_siblings(steps, budget)
    admitted = _admit(siblings, Budget(budget.left * 3 // 4), limits)
    chosen = {path: [each for each in found if roots.allow(each)] for path, found in admitted.items()}  # links
    not_listed = {step.output_path for step in steps if _has_versioned_path(step)} - siblings.keys()
    ages = _Ages(budget)
    ages.read(path for found in chosen.values() if len(found) > limits.compared for path in found)
    candidates = {path: ages.newest(found, limits.compared) for path, found in chosen.items()}
    resolved = _with_inputs(step for step in steps if isinstance(step, ResolvedStep))
    stored = StoredVersions(budget, roots, (*steps, *resolved, *inputs))
    stored.expect(expected)
    differences = _compare(steps, candidates, stored)
    for found in differences.values():
        found.sort(key=lambda pair: len(pair[1]))
    ages.read(path for found in differences.values() for path in _nearest_paths(found, limits.reported))
    nearest = {path: ages.nearest(found) for path, found in differences.items()}
    return VersionHistory(nearest, frozenset(not_listed | (siblings.keys() - chosen.keys())))


def _reason(step: ResolvedStep, history: VersionHistory) -> str:
    if step.output_path in history.not_compared:
        return f"{NEVER_RAN} in this version; earlier versions were not compared, `why {step.name}` does"
    nearest = history.nearest.get(step.output_path)
    if not nearest:
        return NEVER_RAN
    return f"{sentence(nearest[0].changes)}, since {nearest[0].title}"


def _has_versioned_path(step: CurrentVersion) -> bool:
    """Whether other versions of the step are beside it; a path that the step overrides has none."""
    return step.output_path.endswith(f"/{step.version_name}")


def _find_siblings(steps: Iterable[CurrentVersion], budget: Budget) -> dict[str, list[str]]:
    """Return output path → the output paths of other versions; an overridden output path has none."""
    of_folder: defaultdict[str, list[str]] = defaultdict(list)
    for step in steps:
        if _has_versioned_path(step):
            of_folder[posixpath.dirname(step.output_path)].append(step.output_path)
    siblings: dict[str, list[str]] = {}
    for folder, names in list_folders(budget.take(list(of_folder))).items():
        versions: defaultdict[str, list[str]] = defaultdict(list)
        for name in names:
            if found := _VERSIONED_NAME.fullmatch(name):
                versions[found[1]].append(posixpath.join(folder, name))
        for path in of_folder[folder]:
            base = posixpath.basename(path).rpartition("-")[0]
            siblings[path] = [other for other in versions[base] if other != path]
    return siblings


def _admit(siblings: Mapping[str, list[str]], budget: Budget, limits: SearchLimits) -> dict[str, list[str]]:
    """Return the steps whose earlier versions can all be read, in the plan's order."""
    chosen: dict[str, list[str]] = {}
    seen: set[str] = set()
    for path, found in siblings.items():
        found = found[: limits.dated]
        unseen = [other for other in found if other not in seen]
        cost = min(len(unseen), limits.compared) + (len(unseen) if len(found) > limits.compared else 0)
        if cost <= budget.left:
            budget.left -= cost
            seen.update(unseen)
            chosen[path] = found
    return chosen


class _Ages:
    """Times at which outputs were made, as far as they were read."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._made_at: dict[str, float | None] = {}

    def read(self, output_paths: Iterable[str]) -> None:
        """Read the unknown leases together."""
        unknown = [path for path in dict.fromkeys(output_paths) if path not in self._made_at]
        paths = self._budget.take(unknown)
        leases = read_leases(paths)
        self._made_at.update(dict.fromkeys(paths))
        self._made_at.update((path, float(found.timestamp)) for path, found in leases.items() if found.timestamp > 0)

    def newest(self, output_paths: Sequence[str], count: int) -> list[str]:
        return sorted(output_paths, key=lambda path: self._made_at.get(path) or 0.0, reverse=True)[:count]

    def nearest(self, differences: Sequence[Difference]) -> list[EarlierVersion]:
        """Sort versions: fewest changes first, then the newest."""
        found = [EarlierVersion(path[-6:], path, self._made_at.get(path), changes) for path, changes in differences]
        return sorted(found, key=lambda each: (len(each.changes), -(each.made_at or 0.0)))


def _nearest_paths(differences: Sequence[Difference], count: int) -> list[str]:
    """Return the first ``count`` and those as near as the last of them."""
    if not differences:
        return []
    farthest = len(differences[:count][-1][1])
    return [path for path, changes in differences if len(changes) <= farthest]


def _with_inputs(steps: Iterable[ResolvedStep]) -> set[ResolvedStep]:
    """Return the steps and everything that they refer to."""
    found: set[ResolvedStep] = set()
    pending = list(steps)
    while pending:
        step = pending.pop()
        if step not in found:
            found.add(step)
            pending.extend(step.dependencies + step.pseudo_dependencies)
    return found


def _compare(
    steps: Iterable[CurrentVersion], candidates: Mapping[str, Sequence[str]], stored: StoredVersions
) -> dict[str, list[Difference]]:
    """Return output path → its earlier versions that have a record, with their differences."""
    versions = stored.read(dict.fromkeys(path for found in candidates.values() for path in found))
    stored.read_deeper()
    comparison = Comparison(stored.lookup)
    differences: dict[str, list[Difference]] = {}
    for step in steps:
        found = [path for path in candidates.get(step.output_path, ()) if path in versions]
        mine = step.version if found else {}
        differences[step.output_path] = [
            (path, tuple(comparison.changes(versions[path], mine)))
            for path in found
            if versions[path]["name"] == step.name
        ]
    return differences


@dataclass(frozen=True)
class AttemptSummary:
    """Data from an attempt's file that its lease does not hold.

    Attributes:
        error: The first line of its error.
        since: Time of its claim.
    """

    error: str | None = None
    since: str | None = None


def explain_steps(steps: Sequence[tuple[ResolvedStep, Record]], *, roots: Roots) -> Explanations:
    """Explain each step that is not finished; reads are batched."""
    summaries: Mapping[str, AttemptSummary] = {}
    try:
        summaries = read_attempt_summaries({step.output_path: record for step, record in steps})
    except StorageError as error:  # a plan is worth more than its explanations
        logger.warning("Attempts could not be read, so the plan does not state how steps failed: %s", error)
    reasons = {}
    for step, record in steps:
        if record.state is not RecordState.FINISHED:
            summary = summaries.get(step.output_path, AttemptSummary())
            reasons[step.output_path] = state_reason(step, record, {step.output_path: summary.error}.get, summary.since)
    new = explain_new_versions(steps, roots=roots)
    return Explanations({**reasons, **new.reasons}, new.nearest)


def state_reason(step: ResolvedStep, record: Record, read_error_line: ReadErrorLine, since: str | None = None) -> str:
    """Describe the record of ``step``; ``since`` is the claim time of a running attempt."""
    match record.state:
        case RecordState.NONE:
            return NEVER_RAN
        case RecordState.FINISHED:
            producer = format_producer(record.lease.by) if record.lease is not None else ""
            return f"finished before by {producer}" if producer else "finished before"
        case RecordState.GONE:
            return "ran, output gone"
        case RecordState.FAILED:
            return _failed(step, record, read_error_line)
        case RecordState.AT_WORK:
            return _at_work(record.lease, since)
        case RecordState.UNREADABLE:
            lease = record.lease if record.lease is not None else Lease.as_unreadable("the cause is unknown")
            return str(UnreadableLeaseError(step.output_path, lease))
    return _stopped(record)


def read_attempt_summaries(records: Mapping[str, Record]) -> dict[str, AttemptSummary]:
    """Read summaries of the newest attempts that failed or are running, together.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    states = {RecordState.FAILED, RecordState.AT_WORK}
    leases = {path: record.lease for path, record in records.items() if record.state in states}
    numbered = [(path, lease.attempt) for path, lease in leases.items() if lease is not None and lease.attempt]
    files = {path: attempt_path(path, number) for path, number in numbered[:MAX_SUMMARIES]}
    found = read_contents(list(files.values()))
    return {path: _summary(file, found[file]) for path, file in files.items() if file in found}


def _summary(file: str, found: Content) -> AttemptSummary:
    try:
        attempt = parse_attempt(file, found)
    except BadAttemptError as error:
        logger.warning("%s", error)
        return AttemptSummary()
    return AttemptSummary(_error_line(attempt.error), _format_start(attempt.started_at))


def _error_line(error: AttemptError | None) -> str | None:
    if error is None:
        return None
    lines = [line for line in error.message.splitlines() if line.strip()]
    parts = [error.type, lines[0] if lines else ""]
    return truncate_middle(": ".join(part for part in parts if part), MAX_ERROR_CHARS) or None


def _format_start(text: str) -> str | None:
    try:
        return format_time(datetime.datetime.fromisoformat(text).timestamp()) if text else None
    except (ValueError, OverflowError):
        return None


def _failed(step: ResolvedStep, record: Record, read_error_line: ReadErrorLine) -> str:
    if record.lease is None and record.status is Status.DEP_FAILED:
        return "an input failed before"
    line = read_error_line(step.output_path)
    return f"failed before: {line}" if line else "failed before"


def _at_work(lease: Lease | None, since: str | None) -> str:
    if lease is None or lease.written_by_marin:
        worker = f", worker {lease.worker_id}" if lease is not None and lease.worker_id else ""
        return f"in progress in Marin's executor{worker}"
    producer = format_producer(lease.by)
    parts = [
        f" in {producer}" if producer else "",
        f" since {since}" if since else "",
        f" on job {lease.job}" if lease.job else "",
    ]
    return f"in progress{''.join(parts)}"


def _stopped(record: Record) -> str:
    lease = record.lease
    if lease is not None and lease.phase is Phase.STOPPED:
        stopped_by = format_producer(lease.stop_requested or {})
        return f"stopped before by {stopped_by}" if stopped_by else "stopped before"
    return "started before, then its lease expired"
