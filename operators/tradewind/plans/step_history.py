"""A step of a plan beside its earlier versions: what differs, and what they took.

The step may not have started, so that nothing is beside its output yet. The ``plan`` task therefore leaves the version
records of steps that never ran in an XCom, with inputs by name only; all other records are read from the store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.plans.config_rows import ConfigComparison, compare_configs
from tradewind.plans.differences import Change
from tradewind.plans.estimates import FinishedRun, read_runs
from tradewind.plans.plan import CHUNK, Decision, Plan, PlannedStep
from tradewind.plans.reasons import EarlierVersion, SearchLimits, find_history
from tradewind.plans.version_records import (
    CurrentVersion,
    RecordedVersion,
    Version,
    deep_inputs,
    flat_version,
    is_version,
    read_infos,
    version_hash,
)
from tradewind.steps import ResolvedStep
from tradewind.storage import Roots

logger = logging.getLogger(__name__)

VERSIONS_KEY: Final = "versions"
"""The XComs ``versions_0``, ``versions_1``, ... of the ``plan`` task hold the records, in chunks."""
PAGE_LIMITS: Final = SearchLimits(compared=8, dated=100, reported=8, requests=400)
"""A page waits for this search, so it is smaller than that of ``why``."""
MAX_CAUSES: Final = 100
"""Per version."""
MAX_CHUNKS: Final = 20


def version_chunks(plan: Plan, steps: Mapping[str, ResolvedStep]) -> dict[str, dict[str, Any]]:
    """Return XCom key → version records by ``name-hash``, of the steps that never ran in this version.

    Args:
        steps: The steps by task id.
    """
    new = [steps[line.task_id] for line in plan.steps if not line.attempt and line.decision is not Decision.REUSE]
    records = {step.version_name: _flat(step) for step in new}
    names = list(records)
    return {
        f"{VERSIONS_KEY}_{start // CHUNK}": {name: records[name] for name in names[start : start + CHUNK]}
        for start in range(0, len(names), CHUNK)
    }


def _flat(step: ResolvedStep) -> Version:
    pseudo = [each.version_name for each in step.pseudo_dependencies]
    return flat_version(step.version, [each.version_name for each in step.dependencies], pseudo)


def parse_version_chunk(value: object) -> dict[str, Version]:
    """Return the version records in an XCom, by ``name-hash``; invalid ones are omitted."""
    if not isinstance(value, Mapping):
        return {}
    return {str(name): record for name, record in value.items() if isinstance(record, Mapping) and is_version(record)}


@dataclass(frozen=True)
class VersionSummary:
    """An earlier version of a step.

    Attributes:
        made_at: When its lease was last written, in seconds since 1970; None if unknown.
        causes: The root causes of the difference from the step's version.
        left_out: How many further causes there are.
        run: Its newest attempt, if that has ended.
    """

    hash: str
    output_path: str
    made_at: float | None
    causes: tuple[Change, ...]
    left_out: int
    run: FinishedRun | None


@dataclass(frozen=True)
class StepHistory:
    """A step beside its earlier versions, the nearest first.

    Attributes:
        versions: Those that were compared.
        is_complete: Whether all earlier versions were compared.
        compared: Hash of the version that ``config`` compares with; None if there is none.
        config: The config, beside that of ``compared``; None if no record of the step's version exists yet.
        run: The newest attempt at the step's own output, if that has ended.
    """

    versions: tuple[VersionSummary, ...]
    is_complete: bool
    compared: str | None
    config: ConfigComparison | None
    run: FinishedRun | None


def read_step_history(
    line: PlannedStep, plan: Plan, records: Mapping[str, Version], roots: Roots, against: str | None = None
) -> StepHistory:
    """Compare a step of ``plan`` with its earlier versions.

    Args:
        records: The version records that the ``plan`` task left.
        roots: Where paths may be read; the step's output path is checked too.
        against: Hash of the version to show the config beside; default: the nearest.

    Raises:
        OutsideRootsError: The plan names an output path elsewhere.
        StoreUnavailableError: The store does not answer.
    """
    roots.check(line.output_path, f"Step {line.name!r}: its output path")
    version = records.get(line.version_name) or _stored_version(line)
    found: Sequence[EarlierVersion] = ()
    is_complete = True
    if version is not None:
        current = RecordedVersion(line.name, line.hash, line.output_path, version)
        inputs, expected = _known_inputs(current, plan, records)
        history = find_history([current], roots, PAGE_LIMITS, inputs=inputs, expected=expected)
        found = history.nearest.get(line.output_path, ())
        is_complete = line.output_path not in history.not_compared
    runs = read_runs([line.output_path, *(each.output_path for each in found)])
    chosen = next((each for each in found if each.hash == against), found[0] if found else None)
    config = None
    if version is not None:
        old = read_infos([chosen.output_path]).get(chosen.output_path) if chosen is not None else None
        config = compare_configs(old["version"] if old is not None else None, version)
    summaries = tuple(_summary(each, runs.get(each.output_path)) for each in found)
    return StepHistory(summaries, is_complete, chosen.hash if chosen else None, config, runs.get(line.output_path))


def _summary(found: EarlierVersion, run: FinishedRun | None) -> VersionSummary:
    causes = found.changes[:MAX_CAUSES]
    return VersionSummary(found.hash, found.output_path, found.made_at, causes, len(found.changes) - len(causes), run)


def _stored_version(line: PlannedStep) -> Version | None:
    """Return the record beside the output, unless it is of another version."""
    info = read_infos([line.output_path]).get(line.output_path)
    if info is None:
        return None
    version: Version = info["version"]
    if version["name"] == line.name and (line.output_path.endswith(line.hash) or version_hash(version) == line.hash):
        return version
    logger.debug("The record at %s is not that of %s.", line.output_path, line.version_name)
    return None


def _known_inputs(
    current: CurrentVersion, plan: Plan, records: Mapping[str, Version]
) -> tuple[Iterable[CurrentVersion], Mapping[str, str]]:
    """Return the inputs whose records are known, and where those of the others are, both at any depth."""
    path_of = {each.version_name: each.output_path for each in plan.steps}
    known: dict[str, CurrentVersion] = {}
    expected: dict[str, str] = {}
    pending = deep_inputs(current.version)
    while pending:
        text = pending.pop()
        if text in known or text in expected:
            continue
        record = records.get(text)
        if record is None:
            if text in path_of:
                expected[text] = path_of[text]
            continue
        name, _, hash_ = text.rpartition("-")
        known[text] = RecordedVersion(name, hash_, path_of.get(text, ""), record)
        pending |= deep_inputs(record)
    return known.values(), expected
