"""Report of a drill: faults, their costs, and whether the outputs equal those of the baseline run.

A drill that only ended well proves nothing. Every fault must have found its victim, the run's own record must charge it
to its cause, and it may cost at most the steps since the newest checkpoint. A fault's share of the record is what the
pods recorded from its moment to the next fault's, which comes only after training has continued.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from tradewind.rehearsal.drill.faults import Fault, FaultResult
from tradewind.rehearsal.drill.outputs import OutputVerdict, PodEvent, RunRecord
from tradewind.runtime.pods.verdicts import Cause
from tradewind.text import format_columns


@dataclass(frozen=True)
class Charge:
    """Expected charge of a kind of fault.

    Attributes:
        event: ``preempted`` or ``failed``; None if nothing is charged to the pod.
        causes: Allowed causes, for a slice that was hit.
        beside: Further causes of preemptions that may occur.
        needs_new_attempt: The driver is lost, so another attempt must follow.
    """

    event: str | None
    causes: frozenset[Cause] = frozenset()
    beside: frozenset[Cause] = frozenset()
    needs_new_attempt: bool = False


_LOST: Final = Charge("preempted", frozenset({Cause.NODE_DIED, Cause.PREEMPTED}))
# Hosts drain their nodes on a notice, which may come a moment before the machine is gone.
_PREEMPTED: Final = replace(_LOST, causes=_LOST.causes | {Cause.DRAINED})
_CUT_OFF: Final = frozenset({Cause.CUT_OFF})
CHARGES: Final = {
    Fault.HOST: _LOST,
    Fault.SLICE: _PREEMPTED,
    Fault.STOCK_OUT: _PREEMPTED,
    Fault.CHECKPOINT: _PREEMPTED,
    Fault.DRAIN: Charge("preempted", frozenset({Cause.DRAINED, Cause.PREEMPTED, Cause.NOTICED})),
    Fault.HANG: Charge("failed", frozenset({Cause.SILENT})),
    Fault.DRIVER: Charge(None, beside=_CUT_OFF, needs_new_attempt=True),
    # A head that is away for long also loses nodes.
    Fault.HEAD: Charge(None, beside=_CUT_OFF | {Cause.NODE_DIED}, needs_new_attempt=True),
    Fault.STORE: Charge(None, beside=_CUT_OFF),
}


def charge_problems(results: Sequence[FaultResult], record: RunRecord) -> Iterator[str]:
    """Yield a sentence for every deviation from the expected charges of the injected faults."""
    injected = [(result.at, result) for result in results if result.at is not None]
    times = [*(at for at, _ in injected), math.inf]
    for event in record.events:
        if event.is_end and event.at < times[0]:
            yield f"Before any fault, the pod {event.name}: {event.cause}."
    for (at, result), until in zip(injected, times[1:], strict=True):
        share = [event for event in record.events if at <= event.at < until]
        yield from (f"The fault {result.fault} {problem}." for problem in _problems(result, share, record))


def _problems(result: FaultResult, share: Sequence[PodEvent], record: RunRecord) -> Iterator[str]:
    kind = Fault(result.fault)
    charge = CHARGES[kind]
    if not result.victims:
        yield "found nothing to hit"
    yield from _wrong_charges(charge, result, share)
    if charge.needs_new_attempt and not _has_new_attempt(result, share, record):
        yield "was followed by no new attempt"
    if kind is Fault.STORE and not result.refused:
        yield "met no request: the store refused none"
    if kind is Fault.STOCK_OUT and result.recovery_s is not None and result.recovery_s < result.lasts_s:
        yield f"was over after {result.recovery_s:.1f} s, though there was no slice for {result.lasts_s:.1f} s"
    yield from _wrong_costs(kind, result, share)


def _wrong_charges(charge: Charge, result: FaultResult, share: Sequence[PodEvent]) -> Iterator[str]:
    ends = [event for event in share if event.is_end]
    right = [event for event in ends if _is_charged(event, charge, result)]
    if charge.event is not None and not right:
        hit, causes = ", ".join(result.victims) or "nothing", sorted(cause.value for cause in charge.causes)
        yield f"was not charged: the pod noted no {charge.event!r} of {hit} with {' or '.join(causes)}"
    if charge.event == "failed" and len(right) > 1:
        yield f"was charged {len(right)} times"
    beside = {cause.value for cause in charge.beside}
    for event in ends:
        is_tolerated = event.name == "preempted" and (event.cause in beside or charge.event == "preempted")
        if event not in right and not is_tolerated:
            yield f"was charged wrongly, as {event.name!r} ({event.cause})"


def _is_charged(event: PodEvent, charge: Charge, result: FaultResult) -> bool:
    is_cause = event.cause in {cause.value for cause in charge.causes}
    return event.name == charge.event and is_cause and (event.slice_name or "") in result.victims


def _has_new_attempt(result: FaultResult, share: Sequence[PodEvent], record: RunRecord) -> bool:
    """Whether a running output has had a later attempt since."""
    before = {event.output: event.attempt for event in record.events if result.at is not None and event.at < result.at}
    return any(event.output in before and event.attempt > before[event.output] for event in share)


def _wrong_costs(kind: Fault, result: FaultResult, share: Sequence[PodEvent]) -> Iterator[str]:
    """Check the cost: training resumes after the newest checkpoint, or after the one before a damaged one."""
    firsts = [event.step for event in share if event.name == "first_step" and event.step is not None]
    seen = [*firsts, *([] if result.resumed_at is None else [result.resumed_at])]
    if not seen or result.at_step is None:
        return
    resumed, lost = min(seen), max(0, result.at_step + 1 - min(seen))
    if kind is Fault.CHECKPOINT and result.damaged is not None and result.damaged < resumed:
        yield f"was survived by the damaged checkpoint: training continued after step {result.damaged}"
    may_lose = result.may_lose
    if may_lose is not None and lost > may_lose:
        yield f"cost {lost} steps, where {may_lose} had been done since the newest checkpoint"


@dataclass(frozen=True)
class DrillReport:
    """Result of a whole drill."""

    dag: str
    seed: int
    state: str
    """State of the run under faults."""
    results: tuple[FaultResult, ...]
    record: RunRecord
    """Record of the run under faults."""
    baseline: RunRecord
    outputs: tuple[OutputVerdict, ...]
    leaks: tuple[str, ...] = field(default=())
    """Processes and slices that remain without need at the end."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the drill failed, a sentence each; empty if it passed."""
        found = [] if self.state == "success" else [f"The run ended as {self.state}."]
        unfinished = [result for result in self.results if result.recovery_s is None]
        found += [f"The fault {result.fault} {_missing_recovery(result)}." for result in unfinished]
        found += charge_problems(self.results, self.record)
        found += [f"In the baseline run, a pod {event.name}: {event.cause}." for event in self.baseline.ends]
        found += [*self.record.unread, *self.baseline.unread]
        found += [f"The output {output.step} is different." for output in self.outputs if not output.is_equal]
        found += [] if self.outputs else ["There are no outputs to compare."]
        return (*found, *(f"Left behind: {leak}." for leak in self.leaks))

    @property
    def has_passed(self) -> bool:
        """Whether each fault hit, was charged correctly, cost at most its limit, and the run ended well."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {
            "dag": self.dag,
            "seed": self.seed,
            "passed": self.has_passed,
            "problems": list(self.problems),
            "state": self.state,
            "faults": [{**asdict(result), "lost_steps": result.lost_steps} for result in self.results],
            "disturbed": self.record.to_json(),
            "undisturbed": self.baseline.to_json(),
            "outputs": [output.to_json() for output in self.outputs],
            "leaks": list(self.leaks),
        }

    def text(self) -> str:
        """The report for users."""
        lines = [f"Drill of {self.dag}, seed {self.seed}: {'passed' if self.has_passed else 'NOT passed'}", ""]
        heads = ("fault", "at step", "recovered after", "steps lost", "what")
        lines += format_columns([heads, *map(_result_row, self.results)])
        lines += ["", *self._figures(), "", *map(_output_line, self.outputs), *self.problems]
        return "\n".join(lines) + "\n"

    def _figures(self) -> list[str]:
        record = self.record
        return [
            f"Run: {self.state}; {record.attempts} attempts, {record.preemptions} preemptions, "
            f"{record.failures} failures",
            f"Pods: {record.wall_s:.1f} s, goodput {_share(record)}; baseline {self.baseline.wall_s:.1f} s, "
            f"goodput {_share(self.baseline)}",
        ]


def _share(record: RunRecord) -> str:
    return "unknown" if record.goodput is None else f"{record.goodput:.0%}"


def _result_row(result: FaultResult) -> tuple[str, ...]:
    recovered = "-" if result.recovery_s is None else f"{result.recovery_s:.1f} s"
    lost = "-" if result.lost_steps is None else str(result.lost_steps)
    step = f"({result.planned_step})" if result.at_step is None else str(result.at_step)
    return result.fault, step, recovered, lost, result.what or "-"


def _missing_recovery(result: FaultResult) -> str:
    return "was not followed by any training" if result.what else "did not come: the run had ended before its step"


def _output_line(output: OutputVerdict) -> str:
    loss = "" if output.final_loss is None else f", final loss {output.final_loss!r}"
    if output.is_equal:
        return f"{output.step}: equal ({output.files} files{loss})"
    return f"{output.step}: DIFFERENT{loss}, baseline {output.baseline_loss!r}: {'; '.join(output.different)}"
