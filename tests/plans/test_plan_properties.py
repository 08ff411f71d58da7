"""Properties of every plan, for any experiment, records and selection."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plans.planning import decisions, experiment, plan_of
from tradewind.plans.plan import Decision
from tradewind.plans.selection import Selection
from tradewind.records.record import RecordState
from tradewind.steps import ResolvedStep

pytestmark = pytest.mark.slow

FINISHED, FAILED = RecordState.FINISHED, RecordState.FAILED
AT_WORK, UNREADABLE = RecordState.AT_WORK, RecordState.UNREADABLE
STATES = st.sampled_from(RecordState)


@st.composite
def situations(draw: st.DrawFn) -> tuple[dict[str, str], dict[str, RecordState], list[str], Selection]:
    names = [f"s{index}" for index in range(draw(st.integers(1, 9)))]
    reads = {}
    for index, name in enumerate(names):
        inputs = draw(st.lists(st.sampled_from(names[:index]), unique=True)) if index else []
        reads[name] = " ".join(("~" if draw(st.integers(0, 5)) == 0 else "") + each for each in inputs)
    some = st.lists(st.sampled_from(names), unique=True)
    selection = Selection(
        run_only=tuple(f"^{name}$" for name in draw(some)) if draw(st.booleans()) else (),
        force=tuple(f"^{name}$" for name in draw(some)) if draw(st.booleans()) else (),
        force_downstream=draw(st.booleans()),
        force_run_failed=draw(st.booleans()),
    )
    return reads, {name: draw(STATES) for name in names}, draw(some), selection


def inputs_of(reads: dict[str, str], name: str) -> list[str]:
    return [each for each in reads[name].split() if not each.startswith("~")]


@given(situations())
def test_decisions_agree_with_states_and_inputs(situation: Any) -> None:
    reads, states, wanted, selection = situation
    decided = decisions(plan_of(experiment(reads), states, wanted, selection))
    for name, decision in decided.items():
        inputs = inputs_of(reads, name)
        for each in inputs if decision == "RUN" else ():
            assert decided[each] in ("RUN", "REUSE", "WAIT")
            assert (decided[each] == "WAIT") == (states[each] is AT_WORK)
            assert decided[each] != "REUSE" or states[each] is FINISHED
        if decision == "BLOCKED":
            is_failed = states[name] is FAILED and not selection.force_run_failed
            is_cause = is_failed or states[name] is UNREADABLE
            assert is_cause or any(decided[each] == "BLOCKED" for each in inputs)
        assert states[name] is not UNREADABLE or decision in ("BLOCKED", "PRUNED")


@given(situations())
def test_running_step_is_requested_forced_or_read_by_running(situation: Any) -> None:
    reads, states, wanted, selection = situation
    plan = plan_of(experiment(reads), states, wanted, selection)
    decided = decisions(plan)
    roots = {regex.strip("^$") for regex in selection.run_only} or set(wanted)
    for line in plan.steps:
        readers = [name for name in reads if line.name in inputs_of(reads, name)]
        if line.decision in (Decision.RUN, Decision.WAIT) and not line.is_forced:
            is_forced_by_name = f"^{line.name}$" in selection.force or selection.force_downstream
            assert line.name in roots or is_forced_by_name or any(decided[name] == "RUN" for name in readers)
        if line.decision is Decision.PRUNED:
            assert line.name not in roots
            assert not any(decided[name] == "RUN" for name in readers)


@given(situations())
def test_result_is_reused_unless_forced(situation: Any) -> None:
    reads, states, wanted, selection = situation
    plan = plan_of(experiment(reads), states, wanted, dataclasses.replace(selection, force=()))
    assert {line.name for line in plan.decided(Decision.REUSE)} == {
        name for name in decisions(plan) if states[name] is FINISHED
    }


@given(situations(), st.randoms(use_true_random=False))
def test_order_of_roots_does_not_matter(situation: Any, random: Any) -> None:
    reads, states, wanted, selection = situation
    shuffled = list(reads)
    random.shuffle(shuffled)
    one = plan_of(experiment(reads), states, wanted, selection)
    other = plan_of(experiment(reads, shuffled), states, wanted, selection)
    assert {line.name: line for line in one.steps} == {line.name: line for line in other.steps}


class Counting(tuple[ResolvedStep, ...]):
    """References that count how often a caller iterates over them."""

    visits = 0

    def __iter__(self) -> Iterator[ResolvedStep]:
        for each in super().__iter__():
            type(self).visits += 1
            yield each


def test_work_grows_with_steps_and_references_only() -> None:
    reads = {
        f"s{index}": " ".join(f"s{index - back}" for back in (1, 2, 3) if index >= back) for index in range(10_000)
    }
    resolved = experiment(reads, roots=["s9999"])
    references = 0
    for step in resolved.steps:
        references += len(step.dependencies)
        step.dependencies = Counting(step.dependencies)
    selection = Selection(force=("^s5$",), force_downstream=True, force_run_failed=False)
    plan = plan_of(resolved, {"s7": FAILED}, ["s9999"], selection)
    assert len(plan.decided(Decision.RUN)) == 10_000
    assert 0 < Counting.visits <= 8 * references
