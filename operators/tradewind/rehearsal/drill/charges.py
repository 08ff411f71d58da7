"""What each fault of a drill must have left behind, and may not have cost: a drill that only ended well proves nothing.

Every fault must have found its victim, must be charged to its cause by the run's own record, and may cost no more steps
than had been done since the newest checkpoint. A fault's share of the record is what the pods noted from its moment to
the next fault's: the next one comes only after training has gone on. Nothing here looks at anything but values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tradewind.rehearsal.drill.faults import Fault
from tradewind.rehearsal.drill.records import PodEvent, RunRecord
from tradewind.rehearsal.drill.stories import FaultStory
from tradewind.runtime.pods.verdicts import Cause


@dataclass(frozen=True)
class Charge:
    """How a kind of fault is to be charged.

    Attributes:
        event: ``preempted`` or ``failed``; None where the pod is to be charged nothing.
        causes: One of these, of a slice that was hit.
        beside: Causes of preemptions that may come beside it.
        needs_new_attempt: The driver is lost, so another attempt must follow.
    """

    event: str | None
    causes: frozenset[Cause] = frozenset()
    beside: frozenset[Cause] = frozenset()
    needs_new_attempt: bool = False


_LOST: Final = Charge("preempted", frozenset({Cause.NODE_DIED, Cause.PREEMPTED}))
# Hosts drain their nodes as soon as the machine knows, which may be a moment before it is gone.
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
    # A head that is away for long takes nodes along.
    Fault.HEAD: Charge(None, beside=_CUT_OFF | {Cause.NODE_DIED}, needs_new_attempt=True),
    Fault.STORE: Charge(None, beside=_CUT_OFF),
}


def charge_problems(stories: Sequence[FaultStory], record: RunRecord) -> Iterator[str]:
    """A sentence about everything that is not as the faults that came would have it."""
    came = [story for story in stories if story.at is not None]
    first = came[0].at if came else None
    for event in record.events:
        if event.is_end and (first is None or event.at < first):
            yield f"Before any fault, the pod {event.name}: {event.cause}."
    for number, story in enumerate(came):
        until = came[number + 1].at if number + 1 < len(came) else None
        share = [event for event in record.events if _is_between(event, story.at, until)]
        yield from (f"The fault {story.fault} {problem}." for problem in _problems(story, share, record))


def _is_between(event: PodEvent, since: float | None, until: float | None) -> bool:
    return since is not None and event.at >= since and (until is None or event.at < until)


def _problems(story: FaultStory, share: Sequence[PodEvent], record: RunRecord) -> Iterator[str]:
    kind = Fault(story.fault)
    charge = CHARGES[kind]
    if not story.victims:
        yield "found nothing to hit"
    yield from _wrong_charges(charge, story, share)
    if charge.needs_new_attempt and not _has_new_attempt(story, share, record):
        yield "was followed by no new attempt"
    if kind is Fault.STORE and not story.refused:
        yield "met no request: the store refused none"
    if kind is Fault.STOCK_OUT and story.recovery_s is not None and story.recovery_s < story.lasts_s:
        yield f"was over after {story.recovery_s:.1f} s, though there was no slice for {story.lasts_s:.1f} s"
    yield from _wrong_costs(kind, story, share)


def _wrong_charges(charge: Charge, story: FaultStory, share: Sequence[PodEvent]) -> Iterator[str]:
    ends = [event for event in share if event.is_end]
    right = [event for event in ends if _is_charged(event, charge, story)]
    if charge.event is not None and not right:
        hit, causes = ", ".join(story.victims) or "nothing", sorted(cause.value for cause in charge.causes)
        yield f"was not charged: the pod noted no {charge.event!r} of {hit} with {' or '.join(causes)}"
    if charge.event == "failed" and len(right) > 1:
        yield f"was charged {len(right)} times"
    beside = {cause.value for cause in charge.beside}
    for event in ends:
        is_tolerated = event.name == "preempted" and (event.cause in beside or charge.event == "preempted")
        if event not in right and not is_tolerated:
            yield f"was charged wrongly, as {event.name!r} ({event.cause})"


def _is_charged(event: PodEvent, charge: Charge, story: FaultStory) -> bool:
    is_cause = event.cause in {cause.value for cause in charge.causes}
    return event.name == charge.event and is_cause and (event.slice_name or "") in story.victims


def _has_new_attempt(story: FaultStory, share: Sequence[PodEvent], record: RunRecord) -> bool:
    """Whether one of the outputs that were at work has had a later attempt since."""
    before = {event.output: event.attempt for event in record.events if story.at is not None and event.at < story.at}
    return any(event.output in before and event.attempt > before[event.output] for event in share)


def _wrong_costs(kind: Fault, story: FaultStory, share: Sequence[PodEvent]) -> Iterator[str]:
    """Training goes on right after the newest checkpoint, or right after the one before a damaged one."""
    firsts = [event.step for event in share if event.name == "first_step" and event.step is not None]
    seen = [*firsts, *([] if story.resumed_at is None else [story.resumed_at])]
    if not seen or story.at_step is None:
        return
    resumed, lost = min(seen), max(0, story.at_step + 1 - min(seen))
    if kind is Fault.CHECKPOINT and story.damaged is not None and story.damaged < resumed:
        yield f"was survived by the damaged checkpoint: training went on after step {story.damaged}"
    may_lose = story.may_lose
    if may_lose is not None and lost > may_lose:
        yield f"cost {lost} steps, where {may_lose} had been done since the newest checkpoint"
