"""The record decides what a plan runs; the first source that names a cluster decides where."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.plans.planning import MARINS_RESULT, NOW, decisions, experiment, lease_of, plan_of, reasons, record_of
from tradewind.plans.decisions import VersionCollisionError, make_plan
from tradewind.plans.plan import Decision, Plan
from tradewind.plans.prefixes import choose_cluster, choose_prefix
from tradewind.plans.selection import Selection
from tradewind.records.lease import Lease, Phase
from tradewind.records.record import Record, RecordState
from tradewind.steps import ExecutorStep, MissingPrefixError, RelativePrefixError, ResolvedStep, resolve

NONE, FINISHED, GONE = RecordState.NONE, RecordState.FINISHED, RecordState.GONE
FAILED, STOPPED, AT_WORK = RecordState.FAILED, RecordState.STOPPED, RecordState.AT_WORK
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "plan-schema.json").read_text())
DIAMOND = {"raw": "", "left": "raw", "right": "raw", "end": "left right"}
CHAIN = {"a": "", "b": "a", "c": "b", "d": "c"}
NO_RETRY = Selection(force_run_failed=False)


# ---- decisions by record


@pytest.mark.parametrize(
    ("state", "decision", "reason", "producer"),
    [
        (NONE, "RUN", "never ran", None),
        (GONE, "RUN", "ran, output gone", None),
        (FAILED, "RUN", "failed before", None),
        (STOPPED, "RUN", "stopped before", None),
        (
            FINISHED,
            "REUSE",
            "made 3 hours ago by run monday of nightly, attempt 2",
            "run monday of nightly, attempt 2",
        ),
        (
            AT_WORK,
            "WAIT",
            "in progress in run monday of nightly, attempt 2 on job job-2",
            "run monday of nightly, attempt 2",
        ),
    ],
)
def test_the_state_of_the_record_decides(state: RecordState, decision: str, reason: str, producer: str | None) -> None:
    [step] = plan_of(experiment({"a": ""}), {"a": state}, ["a"]).steps
    assert (step.decision.value, step.reason, step.producer) == (decision, reason, producer)
    assert step.attempt == (0 if state is NONE else 2)
    assert not step.is_forced


def plan_with(record: Record, step: ExecutorStep | None = None, now: float | None = NOW) -> Plan:
    resolved = resolve([step or ExecutorStep("a", None, None)], "/p").steps[0]
    return make_plan("/p", [("a", resolved)], {"a"}, {resolved.output_path: record}, now=now)


def test_an_output_of_marins_executor_is_reused_and_says_so() -> None:
    [step] = plan_with(MARINS_RESULT).steps
    assert (step.decision, step.reason, step.attempt) == (Decision.REUSE, "made by Marin's executor", 0)
    [gone] = plan_with(dataclasses.replace(MARINS_RESULT, has_output=False)).steps
    assert (gone.decision, gone.reason) == (Decision.RUN, "ran, output gone")


def test_a_step_that_marins_executor_is_at_is_waited_for() -> None:
    [step] = plan_with(Record(lease=Lease("host-1", NOW))).steps
    assert (step.decision, step.reason) == (Decision.WAIT, "in progress in Marin's executor")


@pytest.mark.parametrize(
    ("by", "producer"),
    [
        ({"run": "monday"}, "run monday, attempt 2"),
        ({"script": "e.py", "host": "h", "pid": 7}, "script e.py on h, attempt 2"),
        ({"adopted_from": "/old"}, "adopted_from /old, attempt 2"),
        ({}, "an unknown producer, attempt 2"),
    ],
)
def test_whoever_made_an_output_is_named(by: dict[str, Any], producer: str) -> None:
    step = resolve([ExecutorStep("a", None, None)], "/p").steps[0]
    [line] = plan_with(Record(lease=lease_of(step, Phase.COMMITTED, by=by), has_output=True)).steps
    assert line.producer == producer


def test_without_a_clock_the_time_itself_is_named() -> None:
    record = record_of(resolve([ExecutorStep("a", None, None)], "/p").steps[0], FINISHED)
    [line] = plan_with(record, now=None).steps
    assert line.reason == "made at 2026-09-21 11:13 UTC by run monday of nightly, attempt 2"


def test_a_path_without_a_record_counts_as_never_made() -> None:
    step = resolve([ExecutorStep("a", None, None)], "/p").steps[0]
    assert reasons(make_plan("/p", [("a", step)], {"a"}, {})) == {"a": "never ran"}


# ---- required steps


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
def test_what_only_feeds_finished_steps_is_not_run(finished: str, expected: str) -> None:
    plan = plan_of(experiment(DIAMOND), dict.fromkeys(finished.split(), FINISHED), ["end"])
    assert " ".join(decisions(plan).values()) == expected
    assert set(reasons(plan, Decision.PRUNED).values()) <= {"feeds only finished steps"}


def test_requested_step_runs_even_if_consumers_are_finished() -> None:
    plan = plan_of(experiment(CHAIN), {"c": FINISHED, "d": FINISHED}, ["b", "d"])
    assert decisions(plan) == {"a": "RUN", "b": "RUN", "c": "REUSE", "d": "REUSE"}


def test_the_inputs_of_a_step_that_is_waited_for_are_not_made() -> None:
    plan = plan_of(experiment(DIAMOND), {"left": FINISHED, "end": AT_WORK}, ["end"])
    assert decisions(plan) == {"raw": "PRUNED", "left": "REUSE", "right": "PRUNED", "end": "WAIT"}
    assert reasons(plan)["right"] == "feeds only awaited steps"
    assert reasons(plan)["raw"] == "feeds only awaited and finished steps"


def test_a_step_at_work_that_nothing_needs_is_not_waited_for() -> None:
    plan = plan_of(experiment(CHAIN), {"a": AT_WORK, "b": FINISHED}, ["d"])
    assert decisions(plan) == {"a": "PRUNED", "b": "REUSE", "c": "RUN", "d": "RUN"}


def test_nonblocking_input_runs_only_if_otherwise_required() -> None:
    reads = {"deep": "", "train": "deep", "eval": "~train"}
    assert decisions(plan_of(experiment(reads), {}, ["eval"])) == {"deep": "PRUNED", "train": "PRUNED", "eval": "RUN"}
    assert set(reasons(plan_of(experiment(reads), {}, ["eval"]), Decision.PRUNED).values()) == {"not asked for"}
    both = plan_of(experiment(reads | {"eval2": "train"}), {}, ["eval", "eval2"])
    assert set(decisions(both).values()) == {"RUN"}, "what makes the parent needed makes its own inputs needed too"


def test_two_tasks_of_one_version_get_the_same_decision() -> None:
    step = resolve([ExecutorStep("a", None, None)], "/p").steps[0]
    plan = make_plan("/p", [("a", step), ("a__2", step)], {"a__2"}, {})
    assert [(line.task_id, line.decision) for line in plan.steps] == [("a", Decision.RUN), ("a__2", Decision.RUN)]


# ---- earlier failures


def test_failed_steps_run_again_unless_that_is_switched_off() -> None:
    states = {"a": FINISHED, "b": FAILED}
    assert decisions(plan_of(experiment(CHAIN), states, ["d"])) == {"a": "REUSE", "b": "RUN", "c": "RUN", "d": "RUN"}
    plan = plan_of(experiment(CHAIN), states, ["d"], NO_RETRY)
    assert decisions(plan) == {"a": "REUSE", "b": "BLOCKED", "c": "BLOCKED", "d": "BLOCKED"}
    assert reasons(plan, Decision.BLOCKED) == {
        "b": "failed before; force_run_failed is off",
        "c": "needs `b`, which failed before",
        "d": "needs `b`, which failed before",
    }


def test_what_feeds_only_blocked_steps_is_not_run() -> None:
    plan = plan_of(experiment(DIAMOND), {"left": FAILED}, ["end"], NO_RETRY)
    assert decisions(plan) == {"raw": "PRUNED", "left": "BLOCKED", "right": "PRUNED", "end": "BLOCKED"}
    assert reasons(plan, Decision.PRUNED) == dict.fromkeys(["raw", "right"], "feeds only blocked steps")


def test_a_branch_that_needs_nothing_blocked_runs() -> None:
    reads = {"raw": "", "left": "raw", "right": "raw"}
    plan = plan_of(experiment(reads), {"left": FAILED}, ["left", "right"], NO_RETRY)
    assert decisions(plan) == {"raw": "RUN", "left": "BLOCKED", "right": "RUN"}


@pytest.mark.parametrize("state", [FINISHED, AT_WORK])
def test_a_failed_step_that_nothing_needs_blocks_nothing(state: RecordState) -> None:
    plan = plan_of(experiment(CHAIN), {"b": FAILED, "c": state}, ["d"], NO_RETRY)
    assert decisions(plan)["b"] == "PRUNED"
    assert decisions(plan)["d"] == "RUN"


@pytest.mark.parametrize(("state", "decision"), [(FINISHED, "REUSE"), (AT_WORK, "WAIT")])
def test_a_blocked_input_stops_nobody_who_has_read_it(state: RecordState, decision: str) -> None:
    reads = {"bad": "", "done": "bad", "end": "bad done", "other": "done"}
    plan = plan_of(experiment(reads), {"bad": FAILED, "done": state}, ["end", "other"], NO_RETRY)
    assert decisions(plan) == {"bad": "BLOCKED", "done": decision, "end": "BLOCKED", "other": "RUN"}


@pytest.mark.parametrize("state", [NONE, GONE, STOPPED])
def test_only_a_failure_blocks(state: RecordState) -> None:
    assert decisions(plan_of(experiment({"a": ""}), {"a": state}, ["a"], NO_RETRY)) == {"a": "RUN"}


def test_step_accepting_failed_inputs_runs_with_other_inputs() -> None:
    sweep = experiment({"raw": "", "low": "raw", "high": "raw", "table": "?low ?high"})
    plan = plan_of(sweep, {"low": FAILED}, ["table"], NO_RETRY)
    assert decisions(plan) == {"raw": "RUN", "low": "BLOCKED", "high": "RUN", "table": "RUN"}
    needing = experiment({"low": "", "high": "", "table": "?low high"})
    assert decisions(plan_of(needing, {"high": FAILED}, ["table"], NO_RETRY))["table"] == "BLOCKED"


def test_who_reads_a_step_twice_and_once_needs_it_needs_it() -> None:
    for inputs in ("?low low", "low ?low"):
        plan = plan_of(experiment({"low": "", "table": inputs}), {"low": FAILED}, ["table"], NO_RETRY)
        assert decisions(plan) == {"low": "BLOCKED", "table": "BLOCKED"}


def test_a_nonblocking_input_that_failed_blocks_nothing() -> None:
    plan = plan_of(experiment({"train": "", "eval": "~train"}), {"train": FAILED}, ["eval"], NO_RETRY)
    assert decisions(plan) == {"train": "PRUNED", "eval": "RUN"}


# ---- reasons from other sources


def test_explain_is_called_once_with_all_unfinished_causes() -> None:
    asked: list[list[tuple[str, RecordState]]] = []

    def explain(steps: Sequence[tuple[ResolvedStep, Record]]) -> dict[str, str]:
        asked.append([(step.name, record.state) for step, record in steps])
        return {step.output_path: f"because of {step.name}" for step, _ in steps if step.name != "new"}

    reads = {"done": "", "lost": "", "new": "done", "bad": "", "busy": "", "again": "", "end": "bad"}
    states = {"done": FINISHED, "lost": GONE, "bad": FAILED, "busy": AT_WORK, "again": FINISHED}
    selection = Selection(force=("again",), force_run_failed=False)
    plan = plan_of(experiment(reads), states, list(reads), selection, explain)
    assert asked == [[("lost", GONE), ("new", NONE), ("bad", FAILED), ("busy", AT_WORK)]]
    assert reasons(plan) == {
        "done": "made 3 hours ago by run monday of nightly, attempt 2",
        "lost": "because of lost",
        "new": "never ran",
        "bad": "because of bad; force_run_failed is off",
        "busy": "because of busy",
        "again": "forced",
        "end": "needs `bad`, which failed before",
    }


def test_nobody_is_asked_for_reasons_when_all_is_finished() -> None:
    def explain(steps: Sequence[tuple[ResolvedStep, Record]]) -> dict[str, str]:
        raise AssertionError("there is nothing to explain")

    plan_of(experiment(CHAIN), dict.fromkeys("abcd", FINISHED), ["d"], explain=explain)


# ---- versions that share a path


def test_a_record_of_another_version_is_refused() -> None:
    step = resolve([ExecutorStep("a", None, None)], "/p").steps[0]
    lease = lease_of(step, Phase.COMMITTED)
    other = step.hash + "0" * 26
    with pytest.raises(VersionCollisionError) as caught:
        plan_with(Record(lease=dataclasses.replace(lease, version=other), has_output=True))
    assert str(caught.value) == (
        f"Step 'a' is version {lease.version}, but {step.output_path} belongs to version {other}, whose first six "
        "digits are the same: change the step's name or a versioned value of its config."
    )


def test_other_version_at_explicit_path_is_reused_with_warning() -> None:
    step = ExecutorStep("a", None, None, override_output_path="fixed")
    lease = lease_of(resolve([step], "/p").steps[0], Phase.COMMITTED, version="f" * 32)
    plan = plan_with(Record(lease=lease, has_output=True), step)
    assert decisions(plan) == {"a": "REUSE"}
    assert plan.warnings == ("'a' is reused from another version: override_output_path sets its output path.",)


def test_a_lease_without_a_version_is_no_collision() -> None:
    step = resolve([ExecutorStep("a", None, None)], "/p").steps[0]
    lease = lease_of(step, Phase.COMMITTED, version="")
    assert decisions(plan_with(Record(lease=lease, has_output=True))) == {"a": "REUSE"}


# ---- plans in XCom


def test_a_plan_survives_its_xcom_and_keeps_its_schema() -> None:
    selection = Selection(force=("end", "nothing"), force_run_failed=False)
    states = {"raw": FINISHED, "left": FAILED, "right": AT_WORK}
    plan = plan_of(experiment(DIAMOND | {"alone": "", "seen": "~alone"}), states, ["right", "end", "seen"], selection)
    fields = json.loads(json.dumps(plan.to_json()))
    assert Plan.from_json(fields) == plan
    Draft202012Validator.check_schema(SCHEMA)
    Draft202012Validator(SCHEMA).validate(fields)
    assert [step["decision"] for step in fields["steps"]] == ["REUSE", "BLOCKED", "WAIT", "BLOCKED", "PRUNED", "RUN"]


def test_the_plan_of_a_run_of_an_older_version_can_be_read() -> None:
    step = {"task_id": "a", "name": "a", "hash": "012345", "output_path": "/p/a-012345", "decision": "RUN"}
    plan = Plan.from_json({"prefix": "/p", "steps": [step | {"reason": "never ran"}]})
    assert plan.steps[0].attempt == 0
    assert plan.warnings == ()


# ---- prefix and cluster


def test_the_prefix_comes_from_the_first_source_that_gives_one() -> None:
    sources: dict[str, Any] = {
        "argument": "/argument",
        "param": "/param",
        "environ": {"TRADEWIND_PREFIX": "/tradewind", "MARIN_PREFIX": "/marin"},
        "configured": "/configured",
        "bucket": lambda: "gs://bucket",
    }
    found = []
    for name, nothing in [("argument", None), ("param", None), ("environ", {}), ("configured", None), ("bucket", None)]:
        found.append(choose_prefix(**sources).path)
        sources[name] = (lambda: None) if name == "bucket" else nothing
    assert found == ["/argument", "/param", "/tradewind", "/configured", "gs://bucket"]
    with pytest.raises(MissingPrefixError, match=r"TRADEWIND_PREFIX"):
        choose_prefix(**sources)
    sources["environ"] = {"TRADEWIND_PREFIX": "", "MARIN_PREFIX": "/marin"}
    assert choose_prefix(**sources).path == "/marin"


def test_a_relative_prefix_is_refused() -> None:
    with pytest.raises(RelativePrefixError, match="The prefix: 'outputs' is a relative path"):
        choose_prefix("outputs", None, {}, None, lambda: None)


def test_the_cluster_is_the_steps_own_the_dags_or_the_default() -> None:
    own = ExecutorStep("s", None, None, cluster="own")
    assert choose_cluster(own, "dag", "default") == "own"
    assert choose_cluster(ExecutorStep("s", None, None), "dag", "default") == "dag"
    assert choose_cluster(None, None, "default") == "default"
