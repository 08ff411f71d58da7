"""What each step of a run is decided to be, from the steps, their records and what a person asked for.

A finished step is reused and asks for nothing; a step that must run asks for its inputs, and so on down. What nothing
asks for is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final

from tradewind.plans.plan import Decision
from tradewind.plans.selection import Selection
from tradewind.records.leases.unreadable import UnreadableLeaseError
from tradewind.records.record import Record, RecordState
from tradewind.steps import ResolvedStep


class Choice:
    """The decisions. Every pass goes once over the steps and their references, in execution order or against it.

    Attributes:
        asked: The roots and all that they read, directly or not.
        forced: The steps to make again, with the reason.
        blockers: The steps that cannot run, each with the failed step that is the cause.
        used: The roots, the forced steps, and what those read that run.
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
        self.asked = self._below(roots, lambda step: True)
        self.forced = self._find_forced(forced_names)
        roots = roots | self.forced.keys()
        self.blockers = self._find_blockers(self._below(roots, self._is_due))
        self.used = self._below(roots, lambda step: self._is_due(step) and step not in self.blockers)
        self.decisions = {step: self._decide(step) for step in self.steps}
        self._feeds = self._find_feeds()

    def unexplained(self) -> list[tuple[ResolvedStep, Record]]:
        """The steps that are not done for a reason of their own, which may be more than their state says."""
        return [(step, self.records[step]) for step in self.steps if self._has_own_reason(step)]

    def feeds(self, step: ResolvedStep) -> str:
        """Why nothing needs a pruned step."""
        return f"feeds only {' and '.join(sorted(self._feeds[step]))} steps" if step in self.asked else "not asked for"

    def left_behind(self) -> list[str]:
        """Warnings of results that stay although what they were made from is made again."""
        return [
            f"{step.name!r} is reused although its input {cause.name!r} is made again: force_downstream would renew it."
            for step in self.steps
            if self.decisions[step] is Decision.REUSE
            and (cause := next((each for each in step.dependencies if each in self.forced), None)) is not None
        ]

    def unreadable(self) -> list[str]:
        """Warnings of leases that cannot be read and keep a step from being made, with what to do about each."""
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
        """The roots and the inputs of those among them that read theirs, and so on."""
        found = set(roots)
        for step in reversed(self.steps):
            if step in found and reads(step):
                found.update(step.dependencies)
        return found

    def _is_due(self, step: ResolvedStep) -> bool:
        """Whether it must be made, if it is needed at all."""
        state = self.states[step]
        return state is not RecordState.AT_WORK and (step in self.forced or state is not RecordState.FINISHED)

    def _find_forced(self, names: Container[str]) -> dict[ResolvedStep, str]:
        forced: dict[ResolvedStep, str] = {}
        for step in self.steps:
            if step.name in names and (step in self.asked or not self.selection.run_only):
                forced[step] = "forced"
            elif self.selection.force_downstream and step in self.asked:
                cause = next((each for each in step.dependencies if each in forced), None)
                if cause is not None:
                    forced[step] = f"forced, because input `{cause.name}` is"
        return forced

    def _find_blockers(self, needed: set[ResolvedStep]) -> dict[ResolvedStep, ResolvedStep]:
        blockers: dict[ResolvedStep, ResolvedStep] = {}
        for step in self.steps:
            if step in needed and self._is_due(step):
                if self._blocks(step):
                    blockers[step] = step
                elif (blocked := next((each for each in step.needed if each in blockers), None)) is not None:
                    blockers[step] = blockers[blocked]
        return blockers

    def _blocks(self, step: ResolvedStep) -> bool:
        is_failed = self.states[step] is RecordState.FAILED and step not in self.forced
        is_left_failed = is_failed and not self.selection.force_run_failed
        return is_left_failed or self.states[step] is RecordState.UNREADABLE

    def _decide(self, step: ResolvedStep) -> Decision:
        if step in self.blockers:
            return Decision.BLOCKED
        if self.states[step] is RecordState.FINISHED and step not in self.forced:
            return Decision.REUSE
        if step not in self.used:
            return Decision.PRUNED
        return Decision.WAIT if self.states[step] is RecordState.AT_WORK else Decision.RUN

    def _find_feeds(self) -> dict[ResolvedStep, set[str]]:
        """What the steps are that read each step; a pruned one stands for those that read it."""
        feeds: dict[ResolvedStep, set[str]] = {}
        for step in reversed(self.steps):
            if step in self.asked:
                word = _READERS.get(self.decisions[step])
                words = {word} if word else feeds.get(step, set())
                for dependency in step.dependencies:
                    feeds.setdefault(dependency, set()).update(words)
        return feeds


_NO_RECORD: Final = Record()
_READERS: Final = {Decision.REUSE: "finished", Decision.WAIT: "awaited", Decision.BLOCKED: "blocked"}
