"""``tradewind plan``, ``why`` and ``diff``: decisions that a run's ``plan`` task would make now.

``why`` explains one step's decision, ``diff`` the difference of two versions. Both go down to the root causes, and
answer as text for users and as data for programs. No command writes anything.
"""

from __future__ import annotations

import argparse
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.cli.experiments.load import Experiment, ExperimentRun, RunChoice, default_prefix, load_experiment
from tradewind.cli.experiments.outputs import named_output
from tradewind.cli.output import CommandError, UsageError, json_lines, write_lines
from tradewind.plans.differences import Comparison, full_text
from tradewind.plans.plan import Decision, Plan, PlannedStep
from tradewind.plans.planning import Outputs, plan_now, read_outputs
from tradewind.plans.reasons import (
    STEP_LIMITS,
    AttemptSummary,
    EarlierVersion,
    find_history,
    read_attempt_summaries,
    state_reason,
)
from tradewind.plans.selection import Selection
from tradewind.plans.table import plan_table
from tradewind.plans.version_records import Budget, StoredVersions, Version, list_folders, read_infos
from tradewind.records.info_files import EXPERIMENTS_FOLDER
from tradewind.records.record import Record, RecordState
from tradewind.steps import ResolvedStep
from tradewind.steps.paths import version_name
from tradewind.storage import Roots
from tradewind.text import format_producer

MAX_SEARCH_DEPTH: Final = 3
MAX_FOLDERS: Final = 5000
MAX_VERSIONS_SHOWN: Final = 3
"""Earlier versions that the text describes in full; the data have all."""
_HASH: Final = re.compile(r"[0-9a-f]{6}")
_VERSIONED_NAME: Final = re.compile(r".*-([0-9a-f]{6})", re.DOTALL)


@dataclass(frozen=True)
class Explanation:
    """An answer, as lines and as JSON data."""

    lines: tuple[str, ...]
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class FoundVersion:
    """A version record and its path."""

    output_path: str
    version: Version

    def __str__(self) -> str:
        return f"`{self.version['name']}` at {self.output_path}"

    def to_json(self) -> dict[str, Any]:
        return {"name": self.version["name"], "output_path": self.output_path}


def explain_step(
    step: ResolvedStep, record: Record, *, roots: Roots, planned: PlannedStep | None = None
) -> Explanation:
    """Explain a run's decision for ``step``: its record, and the changes since earlier versions.

    ``planned`` is the step's line in the plan of that run. Root causes are relative to the nearest earlier version.
    """
    summary = read_attempt_summaries({step.output_path: record}).get(step.output_path, AttemptSummary())
    state = state_reason(step, record, lambda path: summary.error, summary.since)
    nearest = find_history([step], roots, STEP_LIMITS).nearest[step.output_path]
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
    return Explanation(tuple(_why_lines(fields, nearest)), fields)


def _why_lines(fields: Mapping[str, Any], nearest: Sequence[EarlierVersion]) -> Iterable[str]:
    decision = f": {fields['decision']}, {fields['reason']}" if fields["decision"] else ""
    yield f"{version_name(fields['name'], fields['hash'])}{decision}"
    attempt = f" (attempt {fields['attempt']})" if fields["attempt"] else ""
    yield f"  state: {fields['state_reason']}{attempt}"
    if fields["producer"]:
        yield f"  producer: {fields['producer']}"
    yield f"  output path: {fields['output_path']}"
    if not nearest:
        yield "  no earlier version exists beside it"
    for version in nearest[:MAX_VERSIONS_SHOWN]:
        yield f"  differs from {version.title} at {version.output_path}:"
        yield from (f"    {line}" for line in full_text(version.changes))
    if len(nearest) > MAX_VERSIONS_SHOWN:
        others = ", ".join(f"`{version.hash}`" for version in nearest[MAX_VERSIONS_SHOWN:])
        yield f"  and from {len(nearest) - MAX_VERSIONS_SHOWN} that are further away: {others}"


def _producer(record: Record, planned: PlannedStep | None) -> str | None:
    if planned is not None and planned.producer:
        return planned.producer
    if record.lease is None or record.state not in (RecordState.FINISHED, RecordState.AT_WORK, RecordState.GONE):
        return None
    return format_producer(record.lease.by) or None


def explain_difference(old: str, new: str, prefix: str) -> Explanation:
    """Explain the difference of versions ``old`` and ``new``: output paths, ``name-hash`` or hashes.

    Raises:
        CommandError: One of them has no record.
        UsageError: A hash belongs to several versions.
    """
    before, after = (find_version(word, prefix) for word in (old, new))
    roots = Roots.of([prefix, before.output_path, after.output_path])
    stored = StoredVersions(Budget(STEP_LIMITS.requests), roots)
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
    """Find the version of an output path, ``name-hash``, or hash, below ``prefix``.

    Raises:
        CommandError: It has no record.
        UsageError: The hash belongs to several versions.
    """
    infos = read_infos(_search(word, prefix) if _HASH.fullmatch(word) else [named_output(prefix, word)])
    if not infos:
        raise CommandError(
            f"There is no version record for {word!r} below {prefix}: give an output path, a name-hash or a hash of an "
            "output that has an .executor_info."
        )
    if len(infos) > 1:
        paths = ", ".join(sorted(infos))
        raise UsageError(f"{word!r} means several versions: give one of the output paths {paths}.")
    ((path, info),) = infos.items()
    return FoundVersion(path, info["version"])


def _search(wanted: str, prefix: str) -> list[str]:
    """Find the outputs with this hash: list folders level by level, without looking into outputs."""
    found: list[str] = []
    level = [prefix]
    listed = 0
    for _ in range(MAX_SEARCH_DEPTH):
        listed += len(level)
        if listed > MAX_FOLDERS:
            raise UsageError(
                f"There are more than {MAX_FOLDERS} folders below {prefix}: give the name-hash instead of {wanted!r}."
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


def plan(arguments: argparse.Namespace) -> int:
    """Print the plan of a run.

    Raises:
        CommandError: There is no such DAG.
        ExperimentError: Its steps cannot be resolved, the selection is invalid, or steps read across regions.
        StoreUnavailableError: The store does not answer.
    """
    experiment = load_experiment(arguments.dag_id)
    choice = RunChoice.of(arguments)
    run = experiment.run(choice)
    outputs = read_run(run, verify=arguments.verify)
    selection = selection_of(arguments, experiment.selection(choice))
    made = plan_now(run.prefix, run.tasks, run.wanted, outputs, selection, roots=run.roots)
    write_lines(json_lines(made.to_json()) if arguments.json else plan_table(made).splitlines())
    _refuse_impossible_steps(experiment, run, made)
    return 0


def why(arguments: argparse.Namespace) -> int:
    """Print why one step would or would not run.

    Raises:
        CommandError: There is no such DAG.
        UsageError: There is no such step.
        ExperimentError: The steps cannot be resolved.
        StoreUnavailableError: The store does not answer.
    """
    experiment = load_experiment(arguments.dag_id)
    choice = RunChoice.of(arguments)
    run = experiment.run(choice)
    task_id, step = run.task(arguments.step)
    outputs = read_run(run)
    made = plan_now(run.prefix, run.tasks, run.wanted, outputs, experiment.selection(choice), roots=run.roots)
    record = outputs.records[step.output_path]
    explanation = explain_step(step, record, roots=run.roots, planned=made.of_task(task_id))
    return _print(explanation, as_json=arguments.json)


def diff(arguments: argparse.Namespace) -> int:
    """Print in what two versions of a step differ.

    Raises:
        CommandError: There is no record of one of them.
        UsageError: A hash belongs to several versions.
        MissingPrefixError: No option and no setting gives a prefix.
    """
    explanation = explain_difference(arguments.first, arguments.second, default_prefix(arguments.prefix))
    return _print(explanation, as_json=arguments.json)


def read_run(run: ExperimentRun, *, verify: bool = False) -> Outputs:
    """Read the records of the outputs of ``run``."""
    return read_outputs([step.output_path for _, step in run.tasks], verify=verify)


def _refuse_impossible_steps(experiment: Experiment, run: ExperimentRun, made: Plan) -> None:
    """Refuse what the ``plan`` task would refuse, after printing the table."""
    from tradewind.tasks.cluster_slices import refuse_missing_slice_types
    from tradewind.tasks.regions import refuse_cross_region_reads

    operator, steps = experiment.operator, dict(run.tasks)
    to_run = [steps[planned.task_id] for planned in made.decided(Decision.RUN)]
    refuse_missing_slice_types(to_run, operator.settings.cluster_of)
    refuse_cross_region_reads(to_run, operator.settings.cluster_of, operator.allow_cross_region)


def selection_of(arguments: argparse.Namespace, otherwise: Selection) -> Selection:
    """Return the selection in the options; for omitted ones, that of the DAG's params.

    Raises:
        SelectionError: A regular expression is invalid.
    """

    def chosen(name: str) -> bool:
        given = getattr(arguments, name)
        return bool(getattr(otherwise, name) if given is None else given)

    return Selection(
        otherwise.run_only if arguments.run_only is None else tuple(arguments.run_only),
        otherwise.force if arguments.force is None else tuple(arguments.force),
        chosen("force_downstream"),
        chosen("force_run_failed"),
    )


def _print(explanation: Explanation, *, as_json: bool) -> int:
    write_lines(json_lines(explanation.fields) if as_json else list(explanation.lines))
    return 0
