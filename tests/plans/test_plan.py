"""The record and a user's selection decide what a plan runs; the first source that names a cluster decides where."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.plans.planning import (
    MARINS_RESULT,
    NOW,
    decisions,
    experiment,
    lease_of,
    plan_of,
    planned_step,
    reasons,
)
from tradewind.plans.decisions import VersionCollisionError, make_plan
from tradewind.plans.plan import CHUNK, Decision, Plan, UnplannedStep, chunk_key, chunks, planned_in
from tradewind.plans.prefixes import choose_cluster, choose_prefix
from tradewind.plans.selection import Selection, SelectionError, find_matches
from tradewind.records.lease import Lease, Phase
from tradewind.records.record import Record, RecordState
from tradewind.steps import (
    ExecutorStep,
    ExperimentError,
    MissingPrefixError,
    RelativePrefixError,
    ResolvedStep,
    resolve,
)

NONE, FINISHED, GONE = RecordState.NONE, RecordState.FINISHED, RecordState.GONE
FAILED, STOPPED, AT_WORK = RecordState.FAILED, RecordState.STOPPED, RecordState.AT_WORK
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "plan-schema.json").read_text())
DIAMOND = {"raw": "", "left": "raw", "right": "raw", "end": "left right"}
CHAIN = {"a": "", "b": "a", "c": "b", "d": "c"}
RETRY, NO_RETRY = Selection(), Selection(force_run_failed=False)
STEP = resolve([ExecutorStep("a", None, None)], "/p").steps[0]
PRODUCER = "run monday of nightly, attempt 2"


# ---- decisions by record


@pytest.mark.parametrize(
    ("state", "decision", "reason", "producer"),
    [
        (NONE, "RUN", "never ran", None),
        (GONE, "RUN", "ran, output gone", None),
        (FAILED, "RUN", "failed before", None),
        (STOPPED, "RUN", "stopped before", None),
        (FINISHED, "REUSE", f"made at 2026-09-21 11:13 UTC by {PRODUCER}", PRODUCER),
        (AT_WORK, "WAIT", f"in progress in {PRODUCER} on job job-2", PRODUCER),
    ],
)
def test_record_state_decides(state: RecordState, decision: str, reason: str, producer: str | None) -> None:
    [step] = plan_of(experiment({"a": ""}), {"a": state}, ["a"]).steps
    assert (step.decision.value, step.reason, step.producer) == (decision, reason, producer)
    assert step.attempt == (0 if state is NONE else 2)
    assert not step.is_forced


def plan_with(record: Record, step: ResolvedStep = STEP) -> Plan:
    return make_plan("/p", [("a", step)], {"a"}, {step.output_path: record})


@pytest.mark.parametrize(
    ("record", "decision", "reason"),
    [
        (MARINS_RESULT, "REUSE", "made by Marin's executor"),
        (dataclasses.replace(MARINS_RESULT, has_output=False), "RUN", "ran, output gone"),
        (Record(lease=Lease("host-1", NOW)), "WAIT", "in progress in Marin's executor"),
    ],
)
def test_record_of_marin_decides_without_attempt(record: Record, decision: str, reason: str) -> None:
    [step] = plan_with(record).steps
    assert (step.decision.value, step.reason, step.attempt) == (decision, reason, 0)


@pytest.mark.parametrize(
    ("by", "producer"),
    [
        ({"run": "monday"}, "run monday, attempt 2"),
        ({"script": "e.py", "host": "h", "pid": 7}, "script e.py on h, attempt 2"),
        ({"adopted_from": "/old"}, "adopted_from /old, attempt 2"),
        ({}, "an unknown producer, attempt 2"),
    ],
)
def test_producer_of_output_is_named(by: dict[str, Any], producer: str) -> None:
    [line] = plan_with(Record(lease=lease_of(STEP, Phase.COMMITTED, by=by), has_output=True)).steps
    assert line.producer == producer


def test_two_tasks_of_one_version_without_record_both_run() -> None:
    plan = make_plan("/p", [("a", STEP), ("a__2", STEP)], {"a__2"}, {})
    assert [(line.task_id, line.decision) for line in plan.steps] == [("a", Decision.RUN), ("a__2", Decision.RUN)]
    assert reasons(plan) == {"a": "never ran"}


# ---- required steps and earlier failures


@pytest.mark.parametrize(
    ("finished", "expected"),
    [
        ("", "RUN RUN RUN RUN"),
        ("raw", "REUSE RUN RUN RUN"),
        ("end", "PRUNED PRUNED PRUNED REUSE"),
        ("left end", "PRUNED REUSE PRUNED REUSE"),
        ("left right", "PRUNED REUSE REUSE RUN"),
        ("left", "RUN REUSE RUN RUN"),
    ],
)
def test_inputs_of_finished_steps_are_not_run(finished: str, expected: str) -> None:
    plan = plan_of(experiment(DIAMOND), dict.fromkeys(finished.split(), FINISHED), ["end"])
    assert " ".join(decisions(plan).values()) == expected
    assert set(reasons(plan, Decision.PRUNED).values()) <= {"feeds only finished steps"}


BRANCHES = {"raw": "", "left": "raw", "right": "raw"}
SWEEP = {"raw": "", "low": "raw", "high": "raw", "table": "?low ?high"}
MIXED = SWEEP | {"table": "?low high"}
NONBLOCKING = {"deep": "", "train": "deep", "eval": "~train"}
SHARED = {"bad": "", "done": "bad", "end": "bad done", "other": "done"}


@pytest.mark.parametrize(
    ("reads", "states", "wanted", "selection", "expected"),
    [
        pytest.param(CHAIN, {"c": FINISHED, "d": FINISHED}, "b d", RETRY, "RUN RUN REUSE REUSE",
                     id="a wanted step runs although its readers are finished"),
        pytest.param(CHAIN, {"a": AT_WORK, "b": FINISHED}, "d", RETRY, "PRUNED REUSE RUN RUN",
                     id="a running step that nothing requires is not awaited"),
        pytest.param(NONBLOCKING, {}, "eval", RETRY, "PRUNED PRUNED RUN",
                     id="a nonblocking input does not run"),
        pytest.param(NONBLOCKING | {"eval2": "train"}, {}, "eval eval2", RETRY, "RUN RUN RUN RUN",
                     id="an input that another step requires runs with its own inputs"),
        pytest.param(CHAIN, {"a": FINISHED, "b": FAILED}, "d", RETRY, "REUSE RUN RUN RUN",
                     id="a failed step runs again"),
        pytest.param(BRANCHES, {"left": FAILED}, "left right", NO_RETRY, "RUN BLOCKED RUN",
                     id="a branch without a failure runs"),
        pytest.param(CHAIN, {"b": FAILED, "c": FINISHED}, "d", NO_RETRY, "PRUNED PRUNED REUSE RUN",
                     id="a failed input of a finished step blocks nothing"),
        pytest.param(CHAIN, {"b": FAILED, "c": AT_WORK}, "d", NO_RETRY, "PRUNED PRUNED WAIT RUN",
                     id="a failed input of a running step blocks nothing"),
        pytest.param(SHARED, {"bad": FAILED, "done": FINISHED}, "end other", NO_RETRY, "BLOCKED REUSE BLOCKED RUN",
                     id="a finished reader of a blocked step does not block its readers"),
        pytest.param(SHARED, {"bad": FAILED, "done": AT_WORK}, "end other", NO_RETRY, "BLOCKED WAIT BLOCKED RUN",
                     id="a running reader of a blocked step does not block its readers"),
        pytest.param(SWEEP, {"low": FAILED}, "table", NO_RETRY, "RUN BLOCKED RUN RUN",
                     id="a step that accepts failed inputs runs with the others"),
        pytest.param(MIXED, {"high": FAILED}, "table", NO_RETRY, "PRUNED PRUNED BLOCKED BLOCKED",
                     id="a step that accepts one failed input still requires the other"),
        pytest.param({"low": "", "table": "?low low"}, {"low": FAILED}, "table", NO_RETRY, "BLOCKED BLOCKED",
                     id="a step that reads an input twice requires it if the second reference does"),
        pytest.param({"low": "", "table": "low ?low"}, {"low": FAILED}, "table", NO_RETRY, "BLOCKED BLOCKED",
                     id="a step that reads an input twice requires it if the first reference does"),
        pytest.param({"train": "", "eval": "~train"}, {"train": FAILED}, "eval", NO_RETRY, "PRUNED RUN",
                     id="a failed nonblocking input blocks nothing"),
        pytest.param({"a": ""}, {"a": NONE}, "a", NO_RETRY, "RUN",
                     id="never run is no failure"),
        pytest.param({"a": ""}, {"a": GONE}, "a", NO_RETRY, "RUN",
                     id="a lost output is no failure"),
        pytest.param({"a": ""}, {"a": STOPPED}, "a", NO_RETRY, "RUN",
                     id="a stopped attempt is no failure"),
    ],
)  # fmt: skip
def test_decisions_by_state(
    reads: dict[str, str], states: dict[str, RecordState], wanted: str, selection: Selection, expected: str
) -> None:
    plan = plan_of(experiment(reads), states, wanted.split(), selection)
    assert decisions(plan) == dict(zip(reads, expected.split(), strict=True))


def test_pruned_step_names_its_readers_decisions() -> None:
    plan = plan_of(experiment(DIAMOND), {"left": FINISHED, "end": AT_WORK}, ["end"])
    assert decisions(plan) == {"raw": "PRUNED", "left": "REUSE", "right": "PRUNED", "end": "WAIT"}
    assert reasons(plan)["right"] == "feeds only awaited steps"
    assert reasons(plan)["raw"] == "feeds only awaited and finished steps"
    plan = plan_of(experiment(DIAMOND), {"left": FAILED}, ["end"], NO_RETRY)
    assert decisions(plan) == {"raw": "PRUNED", "left": "BLOCKED", "right": "PRUNED", "end": "BLOCKED"}
    assert reasons(plan, Decision.PRUNED) == dict.fromkeys(["raw", "right"], "feeds only blocked steps")
    plan = plan_of(experiment(NONBLOCKING), {}, ["eval"])
    assert set(reasons(plan, Decision.PRUNED).values()) == {"not asked for"}


def test_blocked_step_names_the_failed_step() -> None:
    plan = plan_of(experiment(CHAIN), {"a": FINISHED, "b": FAILED}, ["d"], NO_RETRY)
    assert decisions(plan) == {"a": "REUSE", "b": "BLOCKED", "c": "BLOCKED", "d": "BLOCKED"}
    assert reasons(plan, Decision.BLOCKED) == {
        "b": "failed before; force_run_failed is off",
        "c": "needs `b`, which failed before",
        "d": "needs `b`, which failed before",
    }


# ---- reasons from other sources


def test_explain_is_called_once_with_all_unfinished_causes() -> None:
    calls: list[list[tuple[str, RecordState]]] = []

    def explain(steps: Sequence[tuple[ResolvedStep, Record]]) -> dict[str, str]:
        calls.append([(step.name, record.state) for step, record in steps])
        return {step.output_path: f"because of {step.name}" for step, _ in steps if step.name != "new"}

    reads = {"done": "", "lost": "", "new": "done", "bad": "", "busy": "", "again": "", "end": "bad"}
    states = {"done": FINISHED, "lost": GONE, "bad": FAILED, "busy": AT_WORK, "again": FINISHED}
    selection = Selection(force=("again",), force_run_failed=False)
    plan = plan_of(experiment(reads), states, list(reads), selection, explain)
    assert calls == [[("lost", GONE), ("new", NONE), ("bad", FAILED), ("busy", AT_WORK)]]
    assert reasons(plan) == {
        "done": "made at 2026-09-21 11:13 UTC by run monday of nightly, attempt 2",
        "lost": "because of lost",
        "new": "never ran",
        "bad": "because of bad; force_run_failed is off",
        "busy": "because of busy",
        "again": "forced",
        "end": "needs `bad`, which failed before",
    }
    plan_of(experiment(CHAIN), dict.fromkeys("abcd", FINISHED), ["d"], explain=explain)
    assert len(calls) == 1, "nothing to explain"


# ---- versions that share a path


def test_record_of_another_version_is_refused() -> None:
    lease = lease_of(STEP, Phase.COMMITTED)
    other = STEP.hash + "0" * 26
    with pytest.raises(VersionCollisionError) as caught:
        plan_with(Record(lease=dataclasses.replace(lease, version=other), has_output=True))
    assert str(caught.value) == (
        f"Step 'a' is version {lease.version}, but {STEP.output_path} belongs to version {other}, whose first six "
        "digits are the same: change the step's name or a versioned value of its config."
    )


def test_other_version_at_explicit_path_is_reused_with_warning() -> None:
    step = resolve([ExecutorStep("a", None, None, override_output_path="fixed")], "/p").steps[0]
    plan = plan_with(Record(lease=lease_of(step, Phase.COMMITTED, version="f" * 32), has_output=True), step)
    assert decisions(plan) == {"a": "REUSE"}
    assert plan.warnings == ("'a' is reused from another version: override_output_path sets its output path.",)
    unversioned = Record(lease=lease_of(STEP, Phase.COMMITTED, version=""), has_output=True)
    assert decisions(plan_with(unversioned)) == {"a": "REUSE"}


# ---- plans in XCom


def test_plan_survives_its_xcom_and_fits_its_schema() -> None:
    selection = Selection(force=("end", "nothing"), force_run_failed=False)
    states = {"raw": FINISHED, "left": FAILED, "right": AT_WORK}
    plan = plan_of(experiment(DIAMOND | {"alone": "", "seen": "~alone"}), states, ["right", "end", "seen"], selection)
    fields = json.loads(json.dumps(plan.to_json()))
    assert Plan.from_json(fields) == plan
    Draft202012Validator.check_schema(SCHEMA)
    Draft202012Validator(SCHEMA).validate(fields)
    assert [step["decision"] for step in fields["steps"]] == ["REUSE", "BLOCKED", "WAIT", "BLOCKED", "PRUNED", "RUN"]
    assert [step["inputs"] for step in fields["steps"]] == [[], ["raw"], ["raw"], ["left", "right"], [], ["alone"]]
    producers = [(step["producer_dag"], step["producer_run"]) for step in fields["steps"]]
    assert producers == [("nightly", "monday"), (None, None), ("nightly", "monday"), *[(None, None)] * 3]


def test_plan_of_an_older_version_can_be_read() -> None:
    step = {"task_id": "a", "name": "a", "hash": "012345", "output_path": "/p/a-012345", "decision": "RUN"}
    plan = Plan.from_json({"prefix": "/p", "steps": [step | {"reason": "never ran"}]})
    assert (plan.steps[0].attempt, plan.steps[0].inputs, plan.steps[0].changed_inputs) == (0, (), ())
    assert plan.warnings == ()


@pytest.mark.parametrize(("steps", "sizes"), [(0, []), (1, [1]), (CHUNK, [CHUNK]), (2 * CHUNK + 1, [CHUNK, CHUNK, 1])])
def test_each_task_finds_its_line_in_its_chunk(steps: int, sizes: list[int]) -> None:
    plan = Plan("/p", tuple(map(planned_step, range(steps))))
    stored = json.loads(json.dumps(chunks(plan)))
    assert {key: len(chunk["steps"]) for key, chunk in stored.items()} == {
        f"plan_{number}": size for number, size in enumerate(sizes)
    }
    for index, step in enumerate(plan.steps):
        assert planned_in(stored[chunk_key(index)], step.task_id) == dataclasses.replace(step, inputs=())
    assert all(planned_in(chunk, "later") is None for chunk in stored.values())


def test_step_without_plan_is_read_as_written() -> None:
    step = UnplannedStep("exports/rows", "123abc", "/prefix/exports/rows-123abc")
    assert UnplannedStep.from_json(step.to_json()) == step
    for value in (None, "rows", [], {}, {"name": "rows"}, {**step.to_json(), "output_path": 1}):
        assert UnplannedStep.from_json(value) is None


# ---- prefix and cluster


def test_prefix_comes_from_the_first_source_that_gives_one() -> None:
    sources: dict[str, Any] = {
        "argument": "/argument",
        "param": "/param",
        "environ": {"TRADEWIND_PREFIX": "/tradewind", "MARIN_PREFIX": "/marin"},
        "configured": "/configured",
        "bucket": lambda: "gs://bucket",
    }
    found = []
    for name, nothing in {**dict.fromkeys(sources), "environ": {}, "bucket": lambda: None}.items():
        found.append(choose_prefix(**sources).path)
        sources[name] = nothing
    assert found == ["/argument", "/param", "/tradewind", "/configured", "gs://bucket"]
    with pytest.raises(MissingPrefixError, match=r"TRADEWIND_PREFIX"):
        choose_prefix(**sources)
    sources["environ"] = {"TRADEWIND_PREFIX": "", "MARIN_PREFIX": "/marin"}
    assert choose_prefix(**sources).path == "/marin"


def test_relative_prefix_is_refused() -> None:
    with pytest.raises(RelativePrefixError, match="The prefix: 'outputs' is a relative path"):
        choose_prefix("outputs", None, {}, None, lambda: None)


def test_cluster_of_step_then_of_dag_then_default() -> None:
    own = ExecutorStep("s", None, None, cluster="own")
    assert choose_cluster(own, "dag", "default") == "own"
    assert choose_cluster(ExecutorStep("s", None, None), "dag", "default") == "dag"
    assert choose_cluster(None, None, "default") == "default"


# ---- a user's selection for one run


ALL_DONE = dict.fromkeys("abcd", FINISHED)
B_FAILED = {"a": FINISHED, "b": FAILED, "c": FINISHED}
UNBLOCKED = {"deep": "", "parent": "deep", "child": "~parent"}
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
        pytest.param(UNBLOCKED, {}, {"run_only": ["parent"]}, "RUN RUN PRUNED",
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
