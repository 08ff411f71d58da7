"""Make a plan: one decision and its reason per step, from the steps and their records.

A finished step is reused and requires nothing. A step that must run requires its inputs, and so on down. Steps that
nothing requires are pruned.

Decisions depend only on values read before: this module reads no store and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tradewind.plans.estimates import describe_resources
from tradewind.plans.plan import Decision, Plan, PlannedStep
from tradewind.plans.selection import Selection, find_matches
from tradewind.records.lease import Lease, UnreadableLeaseError
from tradewind.records.record import Record, RecordState
from tradewind.steps import OutputPathConflictError, ResolvedStep
from tradewind.text import format_producer, format_time

EVERYTHING: Final = Selection()
_NO_RECORD: Final = Record()
_READERS: Final = {Decision.REUSE: "finished", Decision.WAIT: "awaited", Decision.BLOCKED: "blocked"}
_STATES: Final = {
    RecordState.NONE: "never ran",
    RecordState.GONE: "ran, output gone",
    RecordState.FAILED: "failed before",
    RecordState.STOPPED: "stopped before",
    RecordState.UNREADABLE: "lease cannot be read",
}

Explainer = Callable[[Sequence[tuple[ResolvedStep, Record]]], Mapping[str, str]]
"""Explains why steps run, wait or are blocked: output path → reason, where more is known than the state.

A plan calls it once with all steps, so that it needs few requests.
"""


class PlanDecisions:
    """Decisions of one plan. Each pass visits the steps once, in execution order or in reverse.

    Attributes:
        requested: The roots and everything that they read, directly or indirectly.
        forced: The steps to run again, each with the reason.
        blockers: The steps that cannot run, each with the failed step that causes it.
        required: The roots, the forced steps, and the inputs of those that run.
    """

    def __init__(
        self,
        steps: Iterable[ResolvedStep],
        roots: set[ResolvedStep],
        records: Mapping[str, Record],
        selection: Selection,
        forced_names: Container[str],
    ) -> None:
        self.steps = tuple(dict.fromkeys(steps))
        self.records = {step: records.get(step.output_path, _NO_RECORD) for step in self.steps}
        self.states = {step: record.state for step, record in self.records.items()}
        self.selection = selection
        self.requested = self._below(roots, lambda step: True)
        self.forced = self._find_forced(forced_names)
        roots = roots | self.forced.keys()
        self.blockers = self._find_blockers(self._below(roots, self._is_due))
        self.required = self._below(roots, lambda step: self._is_due(step) and step not in self.blockers)
        self.decisions = {step: self._decide(step) for step in self.steps}
        self._feeds = self._find_feeds()

    def needing_reasons(self) -> list[tuple[ResolvedStep, Record]]:
        """Return steps that run, wait or are blocked for their own reason, which may exceed their state."""
        return [(step, self.records[step]) for step in self.steps if self._has_own_reason(step)]

    def pruned_reason(self, step: ResolvedStep) -> str:
        """Return why nothing requires a pruned step."""
        if step not in self.requested:
            return "not asked for"
        return f"feeds only {' and '.join(sorted(self._feeds[step]))} steps"

    def reuse_warnings(self) -> list[str]:
        """Warn of results that are reused although one of their inputs runs again."""
        return [
            f"{step.name!r} is reused although its input {cause.name!r} runs again: force_downstream reruns both."
            for step in self.steps
            if self.decisions[step] is Decision.REUSE
            and (cause := next((each for each in step.dependencies if each in self.forced), None)) is not None
        ]

    def lease_warnings(self) -> list[str]:
        """Warn of unreadable leases that block a step, with the remedy for each."""
        return [
            f"{step.name!r}: {UnreadableLeaseError(step.output_path, lease)}"
            for step, record in self.records.items()
            if self.blockers.get(step) is step and (lease := record.lease) is not None and lease.flaw is not None
        ]

    def _has_own_reason(self, step: ResolvedStep) -> bool:
        match self.decisions[step]:
            case Decision.RUN:
                return step not in self.forced
            case Decision.BLOCKED:
                return self.blockers[step] is step
        return self.decisions[step] is Decision.WAIT

    def _below(self, roots: set[ResolvedStep], reads: Callable[[ResolvedStep], bool]) -> set[ResolvedStep]:
        """Return the roots and, transitively, the inputs of those for which ``reads`` is true."""
        found = set(roots)
        for step in reversed(self.steps):
            if step in found and reads(step):
                found.update(step.dependencies)
        return found

    def _is_due(self, step: ResolvedStep) -> bool:
        """Whether the step must run if something requires it."""
        state = self.states[step]
        return state is not RecordState.AT_WORK and (step in self.forced or state is not RecordState.FINISHED)

    def _find_forced(self, names: Container[str]) -> dict[ResolvedStep, str]:
        forced: dict[ResolvedStep, str] = {}
        for step in self.steps:
            if step.name in names and (step in self.requested or not self.selection.run_only):
                forced[step] = "forced"
            elif self.selection.force_downstream and step in self.requested:
                cause = next((each for each in step.dependencies if each in forced), None)
                if cause is not None:
                    forced[step] = f"forced, because input `{cause.name}` is"
        return forced

    def _find_blockers(self, needed: set[ResolvedStep]) -> dict[ResolvedStep, ResolvedStep]:
        blockers: dict[ResolvedStep, ResolvedStep] = {}
        for step in self.steps:
            if step in needed and self._is_due(step):
                state, is_forced = self.states[step], step in self.forced
                is_left_failed = state is RecordState.FAILED and not is_forced and not self.selection.force_run_failed
                if is_left_failed or state is RecordState.UNREADABLE:
                    blockers[step] = step
                elif (blocked := next((each for each in step.needed if each in blockers), None)) is not None:
                    blockers[step] = blockers[blocked]
        return blockers

    def _decide(self, step: ResolvedStep) -> Decision:
        if step in self.blockers:
            return Decision.BLOCKED
        if self.states[step] is RecordState.FINISHED and step not in self.forced:
            return Decision.REUSE
        if step not in self.required:
            return Decision.PRUNED
        return Decision.WAIT if self.states[step] is RecordState.AT_WORK else Decision.RUN

    def _find_feeds(self) -> dict[ResolvedStep, set[str]]:
        """Return the kinds of steps that read each step; a pruned reader counts as its own readers."""
        feeds: dict[ResolvedStep, set[str]] = {}
        for step in reversed(self.steps):
            if step in self.requested:
                word = _READERS.get(self.decisions[step])
                words = {word} if word else feeds.get(step, set())
                for dependency in step.dependencies:
                    feeds.setdefault(dependency, set()).update(words)
        return feeds


class VersionCollisionError(OutputPathConflictError):
    """Two versions share the six digits of their hash, and so the output path."""


def make_plan(
    prefix: str,
    tasks: Iterable[tuple[str, ResolvedStep]],
    wanted: Container[str],
    records: Mapping[str, Record],
    selection: Selection = EVERYTHING,
    explain: Explainer | None = None,
) -> Plan:
    """Decide for each ``(task id, step)``, given in execution order.

    Args:
        prefix: Where outputs are written.
        tasks: The steps that have a task.
        wanted: The tasks whose outputs are wanted, unless ``selection.run_only`` says otherwise.
        records: The record of each output path; a path without one counts as never run.
        selection: The run's selection.
        explain: Gives reasons beyond the records' states.

    Raises:
        VersionCollisionError: A record belongs to another version, whose hash has the same six digits.
    """
    tasks = list(tasks)
    names = [step.name for _, step in tasks]
    only, forced = find_matches(selection.run_only, names), find_matches(selection.force, names)
    is_only = bool(selection.run_only)
    roots = {step for task_id, step in tasks if (step.name in only.names if is_only else task_id in wanted)}
    choice = PlanDecisions([step for _, step in tasks], roots, records, selection, forced.names)
    warnings = [f"run_only: {regex!r} matches no step." for regex in only.unused]
    warnings += [f"force: {regex!r} matches no step." for regex in forced.unused]
    warnings += _check_versions(choice)
    warnings += choice.reuse_warnings()
    warnings += choice.lease_warnings()
    unexplained = choice.needing_reasons()
    explained = explain(unexplained) if explain is not None and unexplained else {}
    task_of: dict[ResolvedStep, str] = {}
    for task_id, step in tasks:
        task_of.setdefault(step, task_id)
    lines = tuple(
        replace(
            _line(task_id, step, choice, explained.get(step.output_path)),
            inputs=tuple(dict.fromkeys(task_of[each] for each in _read_by(step) if each in task_of)),
        )
        for task_id, step in tasks
    )
    return Plan(prefix, lines, tuple(warnings))


def _read_by(step: ResolvedStep) -> tuple[ResolvedStep, ...]:
    return step.dependencies + step.pseudo_dependencies


def _line(task_id: str, step: ResolvedStep, choice: PlanDecisions, explained: str | None) -> PlannedStep:
    decision, lease = choice.decisions[step], choice.records[step].lease
    has_producer = decision in (Decision.REUSE, Decision.WAIT)
    by = lease.by if lease is not None and has_producer and not lease.written_by_marin else {}
    return PlannedStep(
        task_id,
        step.name,
        step.hash,
        step.output_path,
        decision,
        _reason(step, choice, explained),
        attempt=lease.attempt if lease else 0,
        is_forced=decision is Decision.RUN and step in choice.forced,
        is_damaged=choice.records[step].is_damaged,
        producer=_producer(lease) if has_producer else None,
        place=describe_resources(step.step.resources),
        producer_dag=_text_of(by, "dag"),
        producer_run=_text_of(by, "run"),
    )


def _reason(step: ResolvedStep, choice: PlanDecisions, explained: str | None) -> str:
    lease = choice.records[step].lease
    match choice.decisions[step]:
        case Decision.REUSE:
            return f"made {_when(lease)}by {_producer(lease)}"
        case Decision.WAIT:
            job = f" on job {lease.job}" if lease and lease.job else ""
            return explained or f"in progress in {_producer(lease)}{job}"
        case Decision.RUN:
            return choice.forced.get(step) or explained or _STATES[choice.states[step]]
        case Decision.BLOCKED if choice.states[step] is RecordState.UNREADABLE:
            return f"{_STATES[RecordState.UNREADABLE]}: {lease.flaw if lease else None}"
        case Decision.BLOCKED if choice.blockers[step] is step:
            return f"{explained or _STATES[choice.states[step]]}; force_run_failed is off"
        case Decision.BLOCKED:
            blocker = choice.blockers[step]
            is_unreadable = choice.states[blocker] is RecordState.UNREADABLE
            return f"needs `{blocker.name}`, {'whose lease cannot be read' if is_unreadable else 'which failed before'}"
    return choice.pruned_reason(step)


def _text_of(by: Mapping[str, object], key: str) -> str | None:
    value = by.get(key)
    return value if isinstance(value, str) and value else None


def _producer(lease: Lease | None) -> str:
    if lease is None or lease.written_by_marin:
        return "Marin's executor"
    who = format_producer(lease.by) or "an unknown producer"
    return f"{who}, attempt {lease.attempt}"


def _when(lease: Lease | None) -> str:
    """Return the time of a Tradewind output with a trailing space; empty for Marin's, which has no lease."""
    if lease is None or lease.written_by_marin:
        return ""
    return f"at {format_time(lease.timestamp)} "


def _check_versions(choice: PlanDecisions) -> list[str]:
    """Refuse records of other versions. At an overridden output path, only warn if such a record is reused."""
    warnings = []
    for step, record in choice.records.items():
        found = record.lease.version if record.lease is not None else ""
        version = step.digest
        if found in ("", version):
            continue
        if step.step.override_output_path is None:
            raise VersionCollisionError(
                f"Step {step.name!r} is version {version}, but {step.output_path} belongs to version {found}, whose "
                "first six digits are the same: change the step's name or a versioned value of its config."
            )
        if choice.decisions[step] is Decision.REUSE:
            warnings.append(other_version_warning(step))
    return warnings


def other_version_warning(step: ResolvedStep) -> str:
    """Warn that another version made the output which the step reuses at an overridden path."""
    return f"{step.name!r} is reused from another version: override_output_path sets its output path."
