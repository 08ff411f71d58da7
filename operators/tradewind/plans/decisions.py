"""Making a plan: the decisions with their reasons, from the steps and what the store says of them.

Decisions are made from values that were read before: nothing here reads, and there is no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final

from tradewind.plans.choice import Choice
from tradewind.plans.estimates import place_in_words
from tradewind.plans.plan import Decision, Plan, PlannedStep
from tradewind.plans.selection import Selection, find_matches
from tradewind.plans.why.phrases import age_text, producer_text, time_text
from tradewind.records.leases.lease import Lease
from tradewind.records.record import Record, RecordState
from tradewind.steps import OutputPathConflictError, ResolvedStep


class VersionCollisionError(OutputPathConflictError):
    """Two versions have the same six digits, and so the same output path."""


Explainer = Callable[[Sequence[tuple[ResolvedStep, Record]]], Mapping[str, str]]
"""Says why steps run, wait or are blocked: output path → reason, for those of which it knows more than their state.

It is asked once a plan, about all of them together, so that it can read what it needs in few requests.
"""

EVERYTHING: Final = Selection()


def make_plan(
    prefix: str,
    tasks: Iterable[tuple[str, ResolvedStep]],
    wanted: Container[str],
    records: Mapping[str, Record],
    selection: Selection = EVERYTHING,
    explain: Explainer | None = None,
    *,
    now: float | None = None,
) -> Plan:
    """Decide for each ``(task id, step)``, which come in execution order.

    Args:
        prefix: Where outputs go.
        tasks: The steps that have a task.
        wanted: The tasks whose outputs are asked for, unless ``selection.run_only`` says otherwise.
        records: The record of each output path; a path without one counts as never made.
        selection: What this run asks for.
        explain: Knows more of the reasons than the records' states say.
        now: The time that ages in reasons count from; without it, reasons name the time itself.

    Raises:
        VersionCollisionError: A record belongs to another version, which has the same output path by chance.
    """
    tasks = list(tasks)
    names = [step.name for _, step in tasks]
    only, forced = find_matches(selection.run_only, names), find_matches(selection.force, names)
    is_only = bool(selection.run_only)
    roots = {step for task_id, step in tasks if (step.name in only.names if is_only else task_id in wanted)}
    choice = Choice([step for _, step in tasks], roots, records, selection, forced.names)
    warnings = [f"run_only: {regex!r} matches no step." for regex in only.unused]
    warnings += [f"force: {regex!r} matches no step." for regex in forced.unused]
    warnings += _check_versions(choice)
    warnings += choice.left_behind()
    warnings += choice.unreadable()
    explained = explain(asked) if explain is not None and (asked := choice.unexplained()) else {}
    lines = tuple(_line(task_id, step, choice, explained.get(step.output_path), now) for task_id, step in tasks)
    return Plan(prefix, lines, tuple(warnings))


_STATES: Final = {
    RecordState.NONE: "never ran",
    RecordState.GONE: "ran, output gone",
    RecordState.FAILED: "failed before",
    RecordState.STOPPED: "stopped before",
    RecordState.UNREADABLE: "lease cannot be read",
}


def _line(task_id: str, step: ResolvedStep, choice: Choice, explained: str | None, now: float | None) -> PlannedStep:
    decision, lease = choice.decisions[step], choice.records[step].lease
    return PlannedStep(
        task_id,
        step.name,
        step.hash,
        step.output_path,
        decision,
        _reason(step, choice, explained, now),
        attempt=lease.attempt if lease else 0,
        is_forced=decision is Decision.RUN and step in choice.forced,
        is_damaged=choice.records[step].is_damaged,
        producer=_producer(lease) if decision in (Decision.REUSE, Decision.WAIT) else None,
        place=place_in_words(step.step.resources),
    )


def _reason(step: ResolvedStep, choice: Choice, explained: str | None, now: float | None) -> str:
    lease = choice.records[step].lease
    match choice.decisions[step]:
        case Decision.REUSE:
            return f"made {_when(lease, now)}by {_producer(lease)}"
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
    return choice.feeds(step)


def _producer(lease: Lease | None) -> str:
    if lease is None or lease.is_marins:
        return "Marin's executor"
    who = producer_text(lease.by) or "somebody"
    return f"{who}, attempt {lease.attempt}"


def _when(lease: Lease | None, now: float | None) -> str:
    """When an output of ours was made, with a space behind; nothing for Marin's, whose leases are gone."""
    if lease is None or lease.is_marins:
        return ""
    return f"{age_text(now - lease.timestamp)} " if now is not None else f"at {time_text(lease.timestamp)} "


def _check_versions(choice: Choice) -> list[str]:
    """Refuse records of other versions; where the path is given by hand, only warn of those that are reused."""
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
            warnings.append(reused_from_elsewhere(step))
    return warnings


def reused_from_elsewhere(step: ResolvedStep) -> str:
    """What a person should know of a step whose output another version made, at a path that both were given."""
    return f"{step.name!r} is reused from another version: its output path is given by hand."
