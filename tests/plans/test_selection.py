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
B_FAILED = {"a": FINISHED, "b": FAILED, "c": FINISHED}
NONBLOCKING = {"deep": "", "parent": "deep", "child": "~parent"}
UNREAD = {"parent": "", "unread": "parent", "child": "~unread"}
CONSUMERS = {"parent": "", "child": "~parent", "other": "parent", "end": "child other"}


@pytest.mark.parametrize(
    ("reads", "states", "selection", "expected"),
    [
        pytest.param({"a": "", "b": "a", "c": ""}, {}, {"run_only": ["^b$"]}, "RUN RUN PRUNED",
                     id="run_only runs a step with its inputs"),
        pytest.param({"a": "", "b": "a", "c": ""}, {}, {"run_only": ["a", "c"]}, "RUN PRUNED RUN",
                     id="run_only runs any of several steps"),
        pytest.param({"train/small": "", "eval/train": "", "data": ""}, {}, {"run_only": ["train"]}, "RUN RUN PRUNED",
                     id="run_only searches anywhere in the name"),
        pytest.param(CHAIN, {"c": FINISHED}, {"run_only": ["^c$"]}, "PRUNED PRUNED REUSE PRUNED",
                     id="a finished step requires no inputs"),
        pytest.param(CHAIN, {"b": FINISHED}, {"run_only": ["^c$"]}, "PRUNED REUSE RUN PRUNED",
                     id="a finished input ends the descent"),
        pytest.param(NONBLOCKING, {}, {"run_only": ["parent"]}, "RUN RUN PRUNED",
                     id="a nonblocking input runs if run_only names it"),
        pytest.param(CHAIN, {"b": FINISHED, "c": FINISHED, "d": FINISHED}, {"force": ["^b$"]}, "RUN RUN REUSE REUSE",
                     id="the missing inputs of a forced step run"),
        pytest.param(CHAIN, {"d": FINISHED}, {"force": ["^a$"]}, "RUN PRUNED PRUNED REUSE",
                     id="a forced step runs although nothing requires it"),
        pytest.param({"parent": "", "child": "~parent"}, {}, {"force": ["parent"]}, "RUN RUN",
                     id="a forced nonblocking input runs"),
        pytest.param(CONSUMERS, dict.fromkeys(CONSUMERS, FINISHED), {"force": ["parent"], "force_downstream": True},
                     "RUN REUSE RUN RUN", id="force_downstream does not follow nonblocking references"),
        pytest.param(UNREAD, {}, {"force": ["parent"], "force_downstream": True},
                     "RUN PRUNED RUN", id="force_downstream does not force what nothing requires"),
        pytest.param(CHAIN, {"a": FINISHED, "b": FAILED}, {"force": ["^b$"], "force_run_failed": False},
                     "REUSE RUN RUN RUN", id="a forced step runs although it failed before"),
        pytest.param(CHAIN, ALL_DONE | {"c": AT_WORK}, {"force": ["c"]}, "REUSE REUSE WAIT REUSE",
                     id="a forced step that runs already is awaited"),
        pytest.param(CHAIN, B_FAILED, {"force": ["c"], "force_run_failed": False}, "REUSE BLOCKED BLOCKED BLOCKED",
                     id="a forced step with a blocked input is blocked"),
        pytest.param(CHAIN, ALL_DONE, {"run_only": ["^b$"], "force": ["."]}, "RUN RUN REUSE REUSE",
                     id="run_only restricts force"),
        pytest.param(CHAIN, ALL_DONE, {"run_only": ["^b$"], "force": ["a"], "force_downstream": True},
                     "RUN RUN REUSE REUSE", id="run_only restricts force_downstream"),
    ],
)  # fmt: skip
def test_decisions_by_selection(
    reads: dict[str, str], states: dict[str, RecordState], selection: dict[str, Any], expected: str
) -> None:
    """The last step is wanted, unless run_only names others."""
    plan = plan_of(experiment(reads), states, [*reads][-1:], Selection(**selection))
    assert decisions(plan) == dict(zip(reads, expected.split(), strict=True))
    assert all(step.decision is Decision.RUN for step in plan.steps if step.is_forced)


def test_unmatched_run_only_expression_runs_nothing_and_warns() -> None:
    plan = plan_of(experiment(CHAIN), {"a": FINISHED}, ["d"], Selection(run_only=("^x", "^y")))
    assert decisions(plan) == {"a": "REUSE", "b": "PRUNED", "c": "PRUNED", "d": "PRUNED"}
    assert plan.warnings == ("run_only: '^x' matches no step.", "run_only: '^y' matches no step.")
    plan = plan_of(experiment(CHAIN), {}, ["d"], Selection(run_only=("c", "x"), force=("b", "y")))
    assert plan.warnings == ("run_only: 'x' matches no step.", "force: 'y' matches no step.")
    assert reasons(plan, Decision.PRUNED) == {"d": "not asked for"}


def test_forced_step_runs_again_without_its_inputs() -> None:
    plan = plan_of(experiment(CHAIN), ALL_DONE, ["d"], Selection(force=("^c$",)))
    assert decisions(plan) == {"a": "REUSE", "b": "REUSE", "c": "RUN", "d": "REUSE"}
    [forced] = [step for step in plan.steps if step.is_forced]
    assert (forced.name, forced.reason, forced.attempt) == ("c", "forced", 2)


def test_force_downstream_forces_all_consumers_of_forced_step() -> None:
    plan = plan_of(experiment(CHAIN), ALL_DONE, ["d"], Selection(force=("^b$",), force_downstream=True))
    assert reasons(plan, Decision.RUN) == {
        "b": "forced",
        "c": "forced, because input `b` is",
        "d": "forced, because input `c` is",
    }
    assert all(step.is_forced for step in plan.decided(Decision.RUN))
    assert decisions(plan)["a"] == "REUSE"


# ---- expressions


@pytest.mark.parametrize("param", ["run_only", "force"])
def test_invalid_expression_is_refused_with_its_param(param: str) -> None:
    with pytest.raises(SelectionError, match=rf"^{param}: 'train\(' is not a regular expression: missing \)") as caught:
        Selection(**{param: ("fine", "train(")})  # type: ignore[arg-type]
    assert isinstance(caught.value, ExperimentError)
    assert Selection(run_only=["a"]) == Selection(run_only=("a",))  # type: ignore[arg-type]


def test_each_distinct_name_is_searched_once() -> None:
    found = find_matches(["^a", "b$", "z"], iter(["ab", "ab", "b", "c"]))
    assert found.names == {"ab", "b"}
    assert found.unused == ("z",)
    assert find_matches([], ["a"]).names == frozenset()
