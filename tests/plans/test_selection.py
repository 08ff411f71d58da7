"""A user's selection for one run, in Marin's words: run_only and force match step names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plans.planning import decisions, experiment, plan_of, reasons
from tradewind.plans.plan import Decision
from tradewind.plans.selection import Selection, SelectionError, find_matches
from tradewind.records.record import RecordState
from tradewind.steps import ExperimentError

FINISHED, FAILED, AT_WORK = RecordState.FINISHED, RecordState.FAILED, RecordState.AT_WORK
CHAIN = {"a": "", "b": "a", "c": "b", "d": "c"}
ALL_DONE = dict.fromkeys("abcd", FINISHED)


def chosen(states: dict[str, RecordState], **selection: Any) -> dict[str, str]:
    return decisions(plan_of(experiment(CHAIN), states, ["d"], Selection(**selection)))


# ---- run_only


def test_run_only_runs_the_named_steps_and_what_they_need() -> None:
    reads = {"a": "", "b": "a", "c": ""}
    plan = plan_of(experiment(reads), {}, ["b", "c"], Selection(run_only=("^b$",)))
    assert decisions(plan) == {"a": "RUN", "b": "RUN", "c": "PRUNED"}
    assert reasons(plan, Decision.PRUNED) == {"c": "not asked for"}
    assert decisions(plan_of(experiment(reads), {}, ["b", "c"], Selection(run_only=("a", "c")))) == {
        "a": "RUN",
        "b": "PRUNED",
        "c": "RUN",
    }


def test_run_only_searches_anywhere_in_the_name() -> None:
    plan = plan_of(
        experiment({"train/small": "", "eval/train": "", "data": ""}), {}, [], Selection(run_only=("train",))
    )
    assert decisions(plan) == {"train/small": "RUN", "eval/train": "RUN", "data": "PRUNED"}


def test_a_finished_step_stops_the_descent() -> None:
    assert chosen({"c": FINISHED}, run_only=("^c$",)) == {"a": "PRUNED", "b": "PRUNED", "c": "REUSE", "d": "PRUNED"}
    assert chosen({"b": FINISHED}, run_only=("^c$",)) == {"a": "PRUNED", "b": "REUSE", "c": "RUN", "d": "PRUNED"}


def test_a_nonblocking_input_runs_if_it_is_named() -> None:
    reads = {"deep": "", "parent": "deep", "child": "~parent"}
    plan = plan_of(experiment(reads), {}, ["child"], Selection(run_only=("parent",)))
    assert decisions(plan) == {"deep": "RUN", "parent": "RUN", "child": "PRUNED"}


def test_unmatched_run_only_expression_runs_nothing_and_warns() -> None:
    plan = plan_of(experiment(CHAIN), {"a": FINISHED}, ["d"], Selection(run_only=("^x", "^y")))
    assert decisions(plan) == {"a": "REUSE", "b": "PRUNED", "c": "PRUNED", "d": "PRUNED"}
    assert plan.warnings == ("run_only: '^x' matches no step.", "run_only: '^y' matches no step.")


def test_only_the_unused_expressions_are_reported() -> None:
    plan = plan_of(experiment(CHAIN), {}, ["d"], Selection(run_only=("c", "x"), force=("b", "y")))
    assert plan.warnings == ("run_only: 'x' matches no step.", "force: 'y' matches no step.")


# ---- force


def test_a_forced_step_is_made_again_and_its_inputs_are_not() -> None:
    plan = plan_of(experiment(CHAIN), ALL_DONE, ["d"], Selection(force=("^c$",)))
    assert decisions(plan) == {"a": "REUSE", "b": "REUSE", "c": "RUN", "d": "REUSE"}
    forced = plan.of_task("c")
    assert forced is not None
    assert (forced.reason, forced.is_forced, forced.attempt) == ("forced", True, 2)
    assert [step.name for step in plan.steps if step.is_forced] == ["c"]


def test_the_missing_inputs_of_a_forced_step_are_made() -> None:
    assert chosen({"b": FINISHED, "c": FINISHED, "d": FINISHED}, force=("^b$",))["a"] == "RUN"


def test_a_step_that_nothing_needs_runs_if_it_is_forced() -> None:
    assert chosen({"d": FINISHED}, force=("^a$",)) == {"a": "RUN", "b": "PRUNED", "c": "PRUNED", "d": "REUSE"}
    reads = {"parent": "", "child": "~parent"}
    plan = plan_of(experiment(reads), {}, ["child"], Selection(force=("parent",)))
    assert decisions(plan) == {"parent": "RUN", "child": "RUN"}


def test_force_downstream_forces_all_consumers_of_forced_step() -> None:
    plan = plan_of(experiment(CHAIN), ALL_DONE, ["d"], Selection(force=("^b$",), force_downstream=True))
    assert reasons(plan, Decision.RUN) == {
        "b": "forced",
        "c": "forced, because input `b` is",
        "d": "forced, because input `c` is",
    }
    assert all(step.is_forced for step in plan.decided(Decision.RUN))
    assert decisions(plan)["a"] == "REUSE"


def test_a_nonblocking_reference_passes_no_force_on() -> None:
    reads = {"parent": "", "child": "~parent", "other": "parent"}
    states = dict.fromkeys(reads, FINISHED)
    plan = plan_of(experiment(reads), states, ["child", "other"], Selection(force=("parent",), force_downstream=True))
    assert decisions(plan) == {"parent": "RUN", "child": "REUSE", "other": "RUN"}


def test_what_nobody_asks_for_is_not_forced_along() -> None:
    reads = {"parent": "", "unwanted": "parent", "child": "~unwanted"}
    plan = plan_of(experiment(reads), {}, ["child"], Selection(force=("parent",), force_downstream=True))
    assert decisions(plan) == {"parent": "RUN", "unwanted": "PRUNED", "child": "RUN"}


def test_a_forced_step_that_somebody_is_at_is_waited_for() -> None:
    plan = plan_of(experiment(CHAIN), ALL_DONE | {"c": AT_WORK}, ["d"], Selection(force=("c",)))
    assert decisions(plan) == {"a": "REUSE", "b": "REUSE", "c": "WAIT", "d": "REUSE"}
    assert not any(step.is_forced for step in plan.steps)


def test_a_forced_step_runs_although_it_failed_before() -> None:
    assert chosen({"a": FINISHED, "b": FAILED}, force=("^b$",), force_run_failed=False)["b"] == "RUN"


def test_a_forced_step_with_a_blocked_input_is_blocked() -> None:
    states = {"a": FINISHED, "b": FAILED, "c": FINISHED}
    plan = plan_of(experiment(CHAIN), states, ["d"], Selection(force=("c",), force_run_failed=False))
    assert decisions(plan) == {"a": "REUSE", "b": "BLOCKED", "c": "BLOCKED", "d": "BLOCKED"}
    assert not any(step.is_forced for step in plan.steps)


def test_run_only_bounds_what_is_forced() -> None:
    plan = plan_of(experiment(CHAIN), ALL_DONE, ["d"], Selection(run_only=("^b$",), force=(".",)))
    assert decisions(plan) == {"a": "RUN", "b": "RUN", "c": "REUSE", "d": "REUSE"}
    downstream = Selection(run_only=("^b$",), force=("a",), force_downstream=True)
    assert decisions(plan_of(experiment(CHAIN), ALL_DONE, ["d"], downstream)) == {
        "a": "RUN",
        "b": "RUN",
        "c": "REUSE",
        "d": "REUSE",
    }


# ---- expressions


@pytest.mark.parametrize("param", ["run_only", "force"])
def test_a_broken_expression_is_refused_by_name(param: str) -> None:
    arguments: dict[str, Any] = {param: ("fine", "train(")}
    with pytest.raises(SelectionError, match=rf"^{param}: 'train\(' is not a regular expression: missing \)") as caught:
        Selection(**arguments)
    assert isinstance(caught.value, ExperimentError)


@pytest.mark.parametrize("value", ["train", None, ["train", 3], {"train": 1}])
def test_anything_but_a_list_of_texts_is_refused(value: Any) -> None:
    with pytest.raises(SelectionError, match=r"^run_only must be a list of regular expressions such as"):
        Selection(run_only=value)


def test_a_list_is_as_good_as_a_tuple() -> None:
    lists: Any = ["a"]
    assert Selection(run_only=lists) == Selection(run_only=("a",))


def test_each_distinct_name_is_searched_once() -> None:
    found = find_matches(["^a", "b$", "z"], iter(["ab", "ab", "b", "c"]))
    assert found.names == {"ab", "b"}
    assert found.unused == ("z",)
    assert find_matches([], ["a"]).names == frozenset()
