"""Earlier versions of steps: which one is nearest to the version at hand, and what has changed since.

Earlier versions of a step lie beside its output, under the same name with another hash. All steps share one listing of
each folder, and their leases and infos are read together. The work is bounded: what a plan does not compare it says so
of, and ``why`` compares it for one step. The nearest version is the one with the fewest changes, then the newest.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.plans.why.differences import Change, Comparison, sentence
from tradewind.plans.why.phrases import age_text
from tradewind.plans.why.stored_versions import Budget, StoredVersions, list_folders
from tradewind.records.leases.lease import Lease
from tradewind.records.reading import read_leases
from tradewind.records.record import Record, RecordState
from tradewind.steps import ResolvedStep
from tradewind.storage import Roots, StorageError

logger = logging.getLogger(__name__)

NEVER_RAN: Final = "never ran"
Difference = tuple[str, tuple[Change, ...]]
"""The output path of an earlier version, and what differs in the version at hand."""
_VERSIONED_NAME = re.compile(r"(.*)-([0-9a-f]{6})", re.DOTALL)


@dataclass(frozen=True)
class Bounds:
    """How far a search goes.

    Attributes:
        compared: How many earlier versions of one step are compared, the newest.
        dated: Of how many the age is asked for, to find the newest, where there are more than that.
        told: How many of the nearest are told of, and so need their ages.
        requests: How many objects are read and folders listed for all steps together.
    """

    compared: int = 8
    dated: int = 64
    told: int = 1
    requests: int = 2000


OF_A_PLAN: Final = Bounds()
OF_ONE_STEP: Final = Bounds(compared=50, dated=1000, told=50, requests=20_000)


@dataclass(frozen=True)
class EarlierVersion:
    """A version that is or was in the store.

    Attributes:
        made_at: When its lease was last written, in seconds since 1970; None if nothing says so.
        changes: What differs in the version at hand, down to the root causes.
    """

    hash: str
    output_path: str
    made_at: float | None
    changes: tuple[Change, ...]

    def title(self, now: float) -> str:
        """It as people refer to it."""
        age = f" of {age_text(now - self.made_at)}" if self.made_at is not None else ""
        return f"version `{self.hash}`{age}"

    def to_json(self) -> dict[str, Any]:
        return {
            "hash": self.hash,
            "output_path": self.output_path,
            "made_at": self.made_at,
            "changes": [change.to_json() for change in self.changes],
        }


@dataclass(frozen=True)
class VersionHistory:
    """What was found.

    Attributes:
        nearest: Output path → its earlier versions, the nearest first.
        not_compared: The output paths whose earlier versions there was no request left for.
    """

    nearest: Mapping[str, Sequence[EarlierVersion]]
    not_compared: frozenset[str] = frozenset()


def explain_new_versions(steps: Sequence[tuple[ResolvedStep, Record]], *, now: float, roots: Roots) -> dict[str, str]:
    """Say why steps run that never ran in this version: output path → reason; the other steps are left out.

    A store that does not answer costs the explanation, not the plan.
    """
    new = [step for step, record in steps if record.state is RecordState.NONE]
    try:
        history = find_history(new, roots)
    except StorageError as error:
        logger.warning("Earlier versions could not be read, so the plan does not tell what has changed: %s", error)
        return {}
    return {step.output_path: _reason(step, history, now) for step in new}


def find_history(steps: Sequence[ResolvedStep], roots: Roots, bounds: Bounds = OF_A_PLAN) -> VersionHistory:
    """Find the earlier versions of ``steps`` and compare them.

    Args:
        roots: Below what is read where a record says so.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    budget = Budget(bounds.requests)
    siblings = _find_siblings(steps, budget)
    chosen = _admit(siblings, Budget(budget.left * 3 // 4), bounds)
    not_listed = {step.output_path for step in steps if step.step.override_output_path is None} - siblings.keys()
    ages = _Ages(budget)
    ages.read(path for found in chosen.values() if len(found) > bounds.compared for path in found)
    candidates = {path: ages.newest(found, bounds.compared) for path, found in chosen.items()}
    differences = _compare(steps, candidates, StoredVersions(budget, roots, _with_inputs(steps)))
    for found in differences.values():
        found.sort(key=lambda pair: len(pair[1]))
    ages.read(path for found in differences.values() for path in _worth_telling(found, bounds.told))
    nearest = {path: ages.nearest(found) for path, found in differences.items()}
    return VersionHistory(nearest, frozenset(not_listed | (siblings.keys() - chosen.keys())))


def _reason(step: ResolvedStep, history: VersionHistory, now: float) -> str:
    if step.output_path in history.not_compared:
        return f"{NEVER_RAN} in this version; earlier versions were not compared, `why {step.name}` does"
    nearest = history.nearest.get(step.output_path)
    if not nearest:
        return NEVER_RAN
    return f"differs from {nearest[0].title(now)}: {sentence(nearest[0].changes)}"


def _find_siblings(steps: Iterable[ResolvedStep], budget: Budget) -> dict[str, list[str]]:
    """Output path → the output paths of other versions; a step that names its own output path has none."""
    of_folder: defaultdict[str, list[str]] = defaultdict(list)
    for step in steps:
        if step.step.override_output_path is None:
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


def _admit(siblings: Mapping[str, list[str]], budget: Budget, bounds: Bounds) -> dict[str, list[str]]:
    """The steps whose earlier versions can all be looked at, in the order of the plan."""
    chosen: dict[str, list[str]] = {}
    seen: set[str] = set()
    for path, found in siblings.items():
        found = found[: bounds.dated]
        unseen = [other for other in found if other not in seen]
        cost = min(len(unseen), bounds.compared) + (len(unseen) if len(found) > bounds.compared else 0)
        if cost <= budget.left:
            budget.left -= cost
            seen.update(unseen)
            chosen[path] = found
    return chosen


class _Ages:
    """When outputs were made, as far as it was asked for."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._made_at: dict[str, float | None] = {}

    def read(self, output_paths: Iterable[str]) -> None:
        """Read the leases of those that are not known yet, together."""
        unknown = [path for path in dict.fromkeys(output_paths) if path not in self._made_at]
        paths = self._budget.take(unknown)
        leases = read_leases(paths)
        self._made_at.update((path, _timestamp(leases.get(path))) for path in paths)

    def newest(self, output_paths: Sequence[str], count: int) -> list[str]:
        return sorted(output_paths, key=lambda path: self._made_at.get(path) or 0.0, reverse=True)[:count]

    def nearest(self, differences: Sequence[Difference]) -> list[EarlierVersion]:
        """The versions, those with the fewest changes first, of these the newest."""
        found = [EarlierVersion(path[-6:], path, self._made_at.get(path), changes) for path, changes in differences]
        return sorted(found, key=lambda each: (len(each.changes), -(each.made_at or 0.0)))


def _timestamp(lease: Lease | None) -> float | None:
    """When a lease was written; None for no lease and for what is none."""
    return float(lease.timestamp) if lease is not None and lease.timestamp > 0 else None


def _worth_telling(differences: Sequence[Difference], count: int) -> list[str]:
    """The first ``count`` and what is as near as the last of them."""
    if not differences:
        return []
    farthest = len(differences[:count][-1][1])
    return [path for path, changes in differences if len(changes) <= farthest]


def _with_inputs(steps: Iterable[ResolvedStep]) -> set[ResolvedStep]:
    """The steps and all that they refer to."""
    found: set[ResolvedStep] = set()
    pending = list(steps)
    while pending:
        step = pending.pop()
        if step not in found:
            found.add(step)
            pending.extend(step.dependencies + step.pseudo_dependencies)
    return found


def _compare(
    steps: Iterable[ResolvedStep], candidates: Mapping[str, Sequence[str]], stored: StoredVersions
) -> dict[str, list[Difference]]:
    """Output path → its earlier versions that have a record, with what differs."""
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
