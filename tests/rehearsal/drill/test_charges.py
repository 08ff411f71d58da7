"""A drill reports each fault that it missed, mistook for another, or whose cost was too high.

A table has the effects of each fault; each test changes one value of a correct row.
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
OWN_VALUES: dict[Fault, dict[str, Any]] = {
    Fault.CHECKPOINT: {"damaged": 47},
    Fault.STORE: {"refused": 7},
    Fault.STOCK_OUT: {"lasts_s": 20.0},
}


def result(kind: Fault, **changes: Any) -> FaultResult:
    """Return a fault after step 50 with newest checkpoint 40; training resumes with step 41 or 51."""
    resumed = 51 if kind in (Fault.DRAIN, Fault.STORE) else 41
    correct = FaultResult(kind.value, 50, "did it", 50, 30.0, resumed, AT, ("slice-a",), 40)
    return replace(correct, **(OWN_VALUES.get(kind, {}) | changes))


def events(kind: Fault, **changes: Any) -> list[PodEvent]:
    """Return the pods' events after the fault; ``changes`` apply to the event that ended the pod."""
    charge = CHARGES[kind]
    started = PodEvent("started", 10.0)
    if charge.event is None:
        return [started, *([PodEvent("started", AT + 20, attempt=2)] if charge.needs_new_attempt else [])]
    cause = sorted(cause.value for cause in charge.causes)[0]
    return [started, replace(PodEvent(charge.event, AT + 3, cause, slice_name="slice-a", step=52), **changes)]


def record(kind: Fault, *further: PodEvent, **changes: Any) -> RunRecord:
    return record_of([*events(kind, **changes), *further], 1, 0.0)


def on_slice(name: str, at: float, cause: str) -> PodEvent:
    return PodEvent(name, at, cause, slice_name="slice-a", step=60)


def problems(results: FaultResult | Sequence[FaultResult], of_run: RunRecord) -> list[str]:
    return list(charge_problems([results] if isinstance(results, FaultResult) else results, of_run))


@pytest.mark.parametrize("kind", Fault)
def test_correctly_charged_fault_within_limits_passes(kind: Fault) -> None:
    assert problems(result(kind), record(kind)) == []


@pytest.mark.parametrize("kind", PREEMPTED)
def test_node_drain_accepted_only_for_machine_preemption(kind: Fault) -> None:
    assert bool(problems(result(kind), record(kind, cause="node drained"))) == (kind is Fault.HOST)


@pytest.mark.parametrize("kind", [kind for kind in Fault if kind is not Fault.STORE])
def test_fault_without_effect_detected_from_run_record(kind: Fault) -> None:
    assert problems(result(kind, resumed_at=51), record_of([PodEvent("started", 10.0)], 1, 0.0))


@pytest.mark.parametrize(
    ("kind", "changes", "problem"),
    [
        *((kind, {"victims": ()}, "found nothing to hit") for kind in Fault),
        (Fault.STORE, {"refused": 0}, "met no request: the store refused none"),
        (Fault.STOCK_OUT, {"recovery_s": 5.0}, "was over after 5.0 s, though there was no slice for 20.0 s"),
        (
            Fault.CHECKPOINT,
            {"resumed_at": 48},
            "was survived by the damaged checkpoint: training continued after step 47",
        ),
    ],
)
def test_fault_with_wrong_result_is_a_problem(kind: Fault, changes: dict[str, Any], problem: str) -> None:
    assert f"The fault {kind.value} {problem}." in problems(result(kind, **changes), record(kind))


OTHER_KINDS = [
    (planned, done)
    for planned in Fault
    for done in Fault
    if CHARGES[planned] != CHARGES[done]
    and Fault.STORE not in (planned, done)
    and {planned, done} != {Fault.DRIVER, Fault.HEAD}  # both lose the driver; the head may keep its nodes
]


@pytest.mark.parametrize(("planned", "done"), OTHER_KINDS)
def test_fault_of_another_kind_than_planned_is_a_problem(planned: Fault, done: Fault) -> None:
    if {planned, done} <= {*PREEMPTED}:  # a notice differs in its cost, a damaged checkpoint in the resumed step
        observed = result(planned, resumed_at=result(done).resumed_at)
        assert bool(problems(observed, record(done, cause=Cause.PREEMPTED.value))) == (
            planned is Fault.DRAIN or (planned, done) == (Fault.CHECKPOINT, Fault.DRAIN)
        )
    else:
        assert problems(result(planned), record(done))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((kind, {"name": "failed"}) for kind in PREEMPTED),
        (Fault.HANG, {"name": "preempted"}),
        (Fault.HANG, {"name": "preempted", "cause": "node died"}),
        *((kind, {"cause": Cause.EXITED.value}) for kind in (*PREEMPTED, Fault.HANG)),
        *((kind, {"slice_name": "slice-b"}) for kind in (*PREEMPTED, Fault.HANG)),
    ],
)
def test_charge_of_other_event_cause_or_slice_is_a_problem(kind: Fault, changes: dict[str, Any]) -> None:
    assert problems(result(kind), record(kind, **changes))


def test_one_hang_is_charged_once() -> None:
    twice = record(Fault.HANG, on_slice("failed", AT + 9, "silent"))
    assert problems(result(Fault.HANG), twice) == ["The fault hang was charged 2 times."]


@pytest.mark.parametrize("kind", Fault)
def test_failure_beside_the_fault_is_a_problem(kind: Fault) -> None:
    [problem] = problems(result(kind), record(kind, on_slice("failed", AT + 9, "exception")))
    assert problem == f"The fault {kind.value} was charged wrongly, as 'failed' (exception)."


@pytest.mark.parametrize("kind", [Fault.DRIVER, Fault.STORE])
@pytest.mark.parametrize(("cause", "is_wrong"), [("node died", True), ("cut off", False)])
def test_driver_or_store_outage_preempts_only_fenced_hosts(kind: Fault, cause: str, is_wrong: bool) -> None:
    assert bool(problems(result(kind), record(kind, on_slice("preempted", AT + 9, cause)))) == is_wrong


@pytest.mark.parametrize("kind", Fault)
def test_one_repeated_step_too_many_is_a_problem(kind: Fault) -> None:
    correct = result(kind)
    assert correct.may_lose is not None and correct.at_step is not None
    resumed = correct.at_step + 1 - correct.may_lose
    assert problems(result(kind, resumed_at=resumed), record(kind)) == []
    [problem] = problems(result(kind, resumed_at=resumed - 1), record(kind))
    assert f"cost {correct.may_lose + 1} steps, where {correct.may_lose} had been done" in problem


def test_first_step_noted_by_pod_used_when_observed_late() -> None:
    [problem] = problems(result(Fault.SLICE), record(Fault.SLICE, PodEvent("first_step", AT + 9, step=40)))
    assert "cost 11 steps" in problem


def test_each_fault_answers_for_its_own_share_of_the_record() -> None:
    both = [result(Fault.SLICE), result(Fault.HANG, at=AT + 50)]
    assert problems(both, record(Fault.SLICE, on_slice("failed", AT + 60, "silent"))) == []
    swapped = record(Fault.SLICE, on_slice("failed", AT + 3, "silent"), at=AT + 60)
    assert len(problems(both, swapped)) == 4


@pytest.mark.parametrize("name", ["preempted", "failed"])
def test_pod_end_before_any_fault_is_a_problem(name: str) -> None:
    early = record_of([on_slice(name, AT - 1, "exception")], 1, 0.0)
    expected = [f"Before any fault, the pod {name}: exception."]
    assert problems(result(Fault.STORE), early) == problems([], early) == expected
