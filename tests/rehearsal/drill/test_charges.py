"""A drill reports each fault that it missed, mistook for another, or whose cost was too high.

The tests play the effects of each fault from a table; each row is correct first, then wrong in one value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tradewind.rehearsal.drill.faults import Fault, FaultResult
from tradewind.rehearsal.drill.outputs import PodEvent, RunRecord, record_of
from tradewind.rehearsal.drill.report import CHARGES, charge_problems
from tradewind.runtime.pods.verdicts import Cause

AT = 100.0
PREEMPTED = (Fault.HOST, Fault.SLICE, Fault.DRAIN, Fault.STOCK_OUT, Fault.CHECKPOINT)


def story(kind: Fault, **changes: Any) -> FaultResult:
    """Return a fault after step 50 with newest checkpoint 40; training resumes with step 41 or 51."""
    resumed = 51 if kind in (Fault.DRAIN, Fault.STORE) else 41
    right = FaultResult(kind.value, 50, "did it", 50, 30.0, resumed, AT, ("slice-a",), 40)
    if kind is Fault.CHECKPOINT:
        right = replace(right, damaged=47)
    if kind is Fault.STORE:
        right = replace(right, refused=7)
    if kind is Fault.STOCK_OUT:
        right = replace(right, lasts_s=20.0)
    return replace(right, **changes)


def record(kind: Fault, **changes: Any) -> RunRecord:
    """Return the pods' events after the fault; ``changes`` apply to the event that ended the pod."""
    return record_of(events(kind, **changes), 1, 0.0)


def events(kind: Fault, **changes: Any) -> list[PodEvent]:
    charge = CHARGES[kind]
    started = PodEvent("started", 10.0)
    if charge.event is None:
        return [started, *([PodEvent("started", AT + 20, attempt=2)] if charge.needs_new_attempt else [])]
    cause = sorted(cause.value for cause in charge.causes)[0]
    return [started, replace(PodEvent(charge.event, AT + 3, cause, slice_name="slice-a", step=52), **changes)]


def problems(one: FaultResult | Sequence[FaultResult], noted: RunRecord) -> list[str]:
    return list(charge_problems([one] if isinstance(one, FaultResult) else one, noted))


@pytest.mark.parametrize("kind", Fault)
def test_correctly_charged_fault_within_limits_passes(kind: Fault) -> None:
    assert problems(story(kind), record(kind)) == []


@pytest.mark.parametrize("kind", PREEMPTED)
def test_node_drain_accepted_only_for_machine_preemption(kind: Fault) -> None:
    assert bool(problems(story(kind), record(kind, cause="node drained"))) == (kind is Fault.HOST)


@pytest.mark.parametrize("kind", [kind for kind in Fault if kind is not Fault.STORE])
def test_fault_without_effect_detected_from_run_record(kind: Fault) -> None:
    nothing_noted = record_of([PodEvent("started", 10.0)], 1, 0.0)
    assert problems(story(kind, resumed_at=51), nothing_noted)


def test_store_outage_without_refusals_is_a_problem() -> None:
    [problem] = problems(story(Fault.STORE, refused=0), record(Fault.STORE))
    assert problem == "The fault store met no request: the store refused none."


@pytest.mark.parametrize("kind", Fault)
def test_a_fault_that_found_nothing_to_hit_is_told(kind: Fault) -> None:
    assert f"The fault {kind.value} found nothing to hit." in problems(story(kind, victims=()), record(kind))


OTHER_KINDS = [
    (planned, done)
    for planned in Fault
    for done in Fault
    if CHARGES[planned] != CHARGES[done]
    and Fault.STORE not in (planned, done)
    and {planned, done} != {Fault.DRIVER, Fault.HEAD}  # both lose the driver; the head may keep its nodes
]


@pytest.mark.parametrize(("planned", "done"), OTHER_KINDS)
def test_a_fault_of_another_kind_than_planned_is_told(planned: Fault, done: Fault) -> None:
    if {planned, done} <= {*PREEMPTED}:  # a notice differs in its cost, a damaged checkpoint in the resumed step
        seen = story(planned, resumed_at=story(done).resumed_at)
        noted = record(done, cause=Cause.PREEMPTED.value)
        assert bool(problems(seen, noted)) == (
            planned is Fault.DRAIN or (planned, done) == (Fault.CHECKPOINT, Fault.DRAIN)
        )
        return
    assert problems(story(planned), record(done))


@pytest.mark.parametrize("kind", PREEMPTED)
def test_a_preemption_that_is_counted_as_a_failure_is_told(kind: Fault) -> None:
    assert problems(story(kind), record(kind, name="failed"))


def test_a_failure_that_is_counted_as_a_preemption_is_told() -> None:
    assert problems(story(Fault.HANG), record(Fault.HANG, name="preempted"))
    assert problems(story(Fault.HANG), record(Fault.HANG, name="preempted", cause="node died"))


@pytest.mark.parametrize("kind", [*PREEMPTED, Fault.HANG])
def test_a_cause_that_is_not_the_faults_is_told(kind: Fault) -> None:
    assert problems(story(kind), record(kind, cause=Cause.EXITED.value))


@pytest.mark.parametrize("kind", [*PREEMPTED, Fault.HANG])
def test_a_slice_that_was_not_hit_is_not_the_one_that_is_charged(kind: Fault) -> None:
    assert problems(story(kind), record(kind, slice_name="slice-b"))


def test_one_hang_is_charged_once() -> None:
    twice = [*events(Fault.HANG), PodEvent("failed", AT + 9, "silent", slice_name="slice-a", step=60)]
    assert problems(story(Fault.HANG), record_of(twice, 1, 0.0)) == ["The fault hang was charged 2 times."]


@pytest.mark.parametrize("kind", Fault)
def test_a_failure_beside_the_fault_is_told(kind: Fault) -> None:
    beside = PodEvent("failed", AT + 9, "exception", slice_name="slice-a", step=60)
    [problem] = problems(story(kind), record_of([*events(kind), beside], 1, 0.0))
    assert problem == f"The fault {kind.value} was charged wrongly, as 'failed' (exception)."


@pytest.mark.parametrize("kind", [Fault.DRIVER, Fault.STORE])
def test_driver_or_store_outage_preempts_only_fenced_hosts(kind: Fault) -> None:
    for cause, is_wrong in (("node died", True), ("cut off", False)):
        beside = PodEvent("preempted", AT + 9, cause, slice_name="slice-a", step=60)
        assert bool(problems(story(kind), record_of([*events(kind), beside], 1, 0.0))) == is_wrong


@pytest.mark.parametrize("kind", Fault)
def test_one_step_too_many_is_told(kind: Fault) -> None:
    right = story(kind)
    assert right.may_lose is not None and right.at_step is not None
    resumed = right.at_step + 1 - right.may_lose
    assert problems(story(kind, resumed_at=resumed), record(kind)) == []
    [problem] = problems(story(kind, resumed_at=resumed - 1), record(kind))
    assert f"cost {right.may_lose + 1} steps, where {right.may_lose} had been done" in problem


def test_first_step_noted_by_pod_used_when_observed_late() -> None:
    first = PodEvent("first_step", AT + 9, step=40)
    [problem] = problems(story(Fault.SLICE), record_of([*events(Fault.SLICE), first], 1, 0.0))
    assert "cost 11 steps" in problem


def test_resume_from_damaged_checkpoint_reported() -> None:
    [problem] = problems(story(Fault.CHECKPOINT, resumed_at=48), record(Fault.CHECKPOINT))
    assert "survived by the damaged checkpoint: training continued after step 47" in problem


def test_a_stock_out_that_is_over_before_its_time_is_told() -> None:
    [problem] = problems(story(Fault.STOCK_OUT, recovery_s=5.0), record(Fault.STOCK_OUT))
    assert problem == "The fault stock-out was over after 5.0 s, though there was no slice for 20.0 s."


def test_each_fault_answers_for_its_own_share_of_the_record() -> None:
    later = story(Fault.HANG, at=AT + 50)
    noted = [*events(Fault.SLICE), PodEvent("failed", AT + 60, "silent", slice_name="slice-a", step=90)]
    assert problems([story(Fault.SLICE), later], record_of(noted, 1, 0.0)) == []
    swapped = [replace(one, at=AT + 60 if one.name == "preempted" else one.at) for one in events(Fault.SLICE)]
    swapped.append(PodEvent("failed", AT + 3, "silent", slice_name="slice-a", step=60))
    assert len(problems([story(Fault.SLICE), later], record_of(swapped, 1, 0.0))) == 4


@pytest.mark.parametrize("name", ["preempted", "failed"])
def test_what_befalls_a_pod_before_any_fault_is_told(name: str) -> None:
    early = PodEvent(name, AT - 1, "exception", slice_name="slice-a", step=10)
    [problem] = problems(story(Fault.STORE), record_of([early], 1, 0.0))
    assert problem == f"Before any fault, the pod {name}: exception."
    assert problems([], record_of([early], 1, 0.0)) == [problem]
