"""Why a step would run and what two versions differ in: the answers as text for people and as data for programs.

Both answers go down to the root causes, and both only read.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.cli.errors import CommandError, UsageError
from tradewind.cli.experiments.named_outputs import named_output
from tradewind.plans.plan import PlannedStep
from tradewind.plans.why.differences import Comparison, full_text
from tradewind.plans.why.history import OF_ONE_STEP, EarlierVersion, find_history
from tradewind.plans.why.phrases import producer_text
from tradewind.plans.why.reasons import Story, read_stories, state_reason
from tradewind.plans.why.stored_versions import Budget, StoredVersions, list_folders, read_infos
from tradewind.plans.why.version_graph import Version
from tradewind.records.experiment_info import EXPERIMENTS_FOLDER
from tradewind.records.record import Record, RecordState
from tradewind.steps import ResolvedStep
from tradewind.steps.paths import version_name
from tradewind.storage import Roots

DEEPEST_FOLDER: Final = 3
MOST_FOLDERS: Final = 5000
MOST_IN_TEXT: Final = 3
"""So many earlier versions are told of in full; the data have them all."""
_HASH: Final = re.compile(r"[0-9a-f]{6}")
_VERSIONED_NAME: Final = re.compile(r".*-([0-9a-f]{6})", re.DOTALL)


class UnknownVersionError(CommandError):
    """No version record is where it was asked for."""


class AmbiguousVersionError(UsageError):
    """A hash belongs to several versions."""


@dataclass(frozen=True)
class Explanation:
    """An answer, in lines and as data that JSON can hold."""

    lines: tuple[str, ...]
    fields: Mapping[str, Any]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def to_json(self) -> dict[str, Any]:
        return dict(self.fields)


@dataclass(frozen=True)
class FoundVersion:
    """A version record and where it lies."""

    output_path: str
    version: Version

    def __str__(self) -> str:
        return f"`{self.version['name']}` at {self.output_path}"

    def to_json(self) -> dict[str, Any]:
        return {"name": self.version["name"], "output_path": self.output_path}


# ---- why


def why(
    step: ResolvedStep, record: Record, *, now: float, roots: Roots, planned: PlannedStep | None = None
) -> Explanation:
    """Explain what a run does with ``step``: its record in words, and what has changed since earlier versions.

    ``planned`` is the step's line in the plan of that run. The root causes are those of the nearest earlier version.
    """
    story = read_stories({step.output_path: record}).get(step.output_path, Story())
    state = state_reason(step, record, lambda path: story.error, story.since)
    nearest = find_history([step], roots, OF_ONE_STEP).nearest[step.output_path]
    causes = nearest[0].changes if nearest else ()
    fields = {
        "name": step.name,
        "hash": step.hash,
        "output_path": step.output_path,
        "decision": planned.decision.value if planned else None,
        "reason": planned.reason if planned else None,
        "state": record.state.value,
        "state_reason": state,
        "attempt": record.lease.attempt if record.lease else 0,
        "producer": _producer(record, planned),
        "root_causes": [cause.to_json() for cause in causes],
        "nearest_versions": [version.to_json() for version in nearest],
    }
    return Explanation(tuple(_why_lines(fields, nearest, now)), fields)


def _why_lines(fields: Mapping[str, Any], nearest: Sequence[EarlierVersion], now: float) -> Iterable[str]:
    decision = f": {fields['decision']}, {fields['reason']}" if fields["decision"] else ""
    yield f"{version_name(fields['name'], fields['hash'])}{decision}"
    attempt = f" (attempt {fields['attempt']})" if fields["attempt"] else ""
    yield f"  state: {fields['state_reason']}{attempt}"
    if fields["producer"]:
        yield f"  producer: {fields['producer']}"
    yield f"  output path: {fields['output_path']}"
    if not nearest:
        yield "  no earlier version lies beside it"
    for version in nearest[:MOST_IN_TEXT]:
        yield f"  differs from {version.title(now)} at {version.output_path}:"
        yield from (f"    {line}" for line in full_text(version.changes))
    if len(nearest) > MOST_IN_TEXT:
        others = ", ".join(f"`{version.hash}`" for version in nearest[MOST_IN_TEXT:])
        yield f"  and from {len(nearest) - MOST_IN_TEXT} that are further away: {others}"


def _producer(record: Record, planned: PlannedStep | None) -> str | None:
    if planned is not None and planned.producer:
        return planned.producer
    if record.lease is None or record.state not in (RecordState.FINISHED, RecordState.AT_WORK, RecordState.GONE):
        return None
    return producer_text(record.lease.by) or None


# ---- diff


def diff(old: str, new: str, prefix: str) -> Explanation:
    """Explain what the version ``new`` differs in from ``old``, each an output path, ``name-hash`` or a bare hash.

    Raises:
        UnknownVersionError: There is no record of one of them.
        AmbiguousVersionError: A bare hash belongs to several versions.
    """
    before, after = (find_version(word, prefix) for word in (old, new))
    roots = Roots.of([prefix, before.output_path, after.output_path])
    stored = StoredVersions(Budget(OF_ONE_STEP.requests), roots)
    stored.read([before.output_path, after.output_path])
    stored.read_deeper()
    changes = Comparison(stored.lookup).changes(before.version, after.version)
    is_same = before.version == after.version
    lines = ["the versions are the same"] if is_same else full_text(changes)
    fields = {
        "old": before.to_json(),
        "new": after.to_json(),
        "is_same": is_same,
        "changes": [change.to_json() for change in changes],
    }
    return Explanation((f"from {before} to {after}:", *(f"  {line}" for line in lines)), fields)


def find_version(word: str, prefix: str) -> FoundVersion:
    """The version that ``word`` means: an output path, ``name-hash``, or a hash, looked for below ``prefix``.

    Raises:
        UnknownVersionError: There is no record of it.
        AmbiguousVersionError: It is a hash that belongs to several versions.
    """
    infos = read_infos(_search(word, prefix) if _HASH.fullmatch(word) else [named_output(prefix, word)])
    if not infos:
        raise UnknownVersionError(
            f"There is no version record for {word!r} below {prefix}: give an output path, a name-hash or a hash of an "
            "output that has an .executor_info."
        )
    if len(infos) > 1:
        paths = ", ".join(sorted(infos))
        raise AmbiguousVersionError(f"{word!r} means several versions: give one of the output paths {paths}.")
    ((path, info),) = infos.items()
    return FoundVersion(path, info["version"])


def _search(wanted: str, prefix: str) -> list[str]:
    """The outputs with this hash; folders are listed together, level by level, and outputs are not looked into."""
    found: list[str] = []
    level = [prefix]
    listed = 0
    for _ in range(DEEPEST_FOLDER):
        listed += len(level)
        if listed > MOST_FOLDERS:
            raise UsageError(
                f"There are more than {MOST_FOLDERS} folders below {prefix}: give the name-hash instead of {wanted!r}."
            )
        names = [(folder, name) for folder, below in list_folders(level).items() for name in below]
        level = []
        for folder, name in names:
            versioned = _VERSIONED_NAME.fullmatch(name)
            if versioned is None and not name.startswith(".") and name != EXPERIMENTS_FOLDER:
                level.append(posixpath.join(folder, name))
            elif versioned is not None and versioned[1] == wanted:
                found.append(posixpath.join(folder, name))
    return found
