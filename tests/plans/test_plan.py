"""Plans decide by the record; where a step runs is decided by the first source that says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tradewind.plans.places import choose_cluster, choose_prefix
from tradewind.plans.plan import Decision, Plan, make_plan
from tradewind.plans.start import Claim, ClearedTask, Finished, Follow, decide_start
from tradewind.plans.table import plan_table
from tradewind.records.attempts import Attempt, Outcome
from tradewind.records.status import Status
from tradewind.steps import ExecutorStep, MissingPrefixError, RelativePrefixError, resolve, versioned


@dataclass(frozen=True)
class Config:
    value: Any


def make(statuses: dict[str, Status]) -> Plan:
    steps = [ExecutorStep(name, None, Config(versioned(name))) for name in ("a", "b", "c", "d")]
    experiment = resolve(steps, "/p")
    asked: list[list[str]] = []

    def read(paths: Any) -> dict[str, Status]:
        asked.append(list(paths))
        return {path: statuses[path[3]] for path in paths if path[3] in statuses}

    tasks = [(step.name, experiment.of(step)) for step in steps]
    plan = make_plan("/p", tasks, {"a", "b", "c", "d"}, read)
    assert len(asked) == 1, "one request for all steps"
    return plan


def test_only_a_finished_output_is_reused() -> None:
    plan = make({"a": Status.SUCCESS, "b": Status.FAILED, "c": Status.RUNNING})
    assert [(step.name, step.decision, step.reason) for step in plan.steps] == [
        ("a", Decision.REUSE, "finished before"),
        ("b", Decision.RUN, "failed before"),
        ("c", Decision.RUN, "started before, not finished"),
        ("d", Decision.RUN, "never ran"),
    ]


@pytest.mark.parametrize(
    ("finished", "decisions"),
    [
        ("", "RUN RUN RUN RUN"),
        ("raw", "REUSE RUN RUN RUN"),
        ("end", "PRUNED PRUNED PRUNED REUSE"),
        ("left end", "PRUNED REUSE PRUNED REUSE"),
        ("left right", "PRUNED REUSE REUSE RUN"),
        ("left", "RUN REUSE RUN RUN"),
    ],
)
def test_what_only_feeds_finished_steps_is_not_run(finished: str, decisions: str) -> None:
    raw = ExecutorStep("raw", None, None)
    left, right = (ExecutorStep(name, None, Config(raw)) for name in ("left", "right"))
    end = ExecutorStep("end", None, Config([left, right]))
    experiment = resolve([end], "/p")
    tasks = [(step.name, step) for step in experiment.steps]
    done = {step.output_path: Status.SUCCESS for step in experiment.steps if step.name in finished.split()}
    plan = make_plan("/p", tasks, {"end"}, lambda paths: done)
    assert " ".join(step.decision.value for step in plan.steps) == decisions


def test_a_plan_survives_its_xcom() -> None:
    plan = make({"a": Status.SUCCESS})
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.to_json()["steps"][0]["decision"] == "REUSE"


def test_the_table_has_a_line_for_each_step_and_a_summary() -> None:
    lines = plan_table(make({"a": Status.SUCCESS})).splitlines()
    assert lines[0].split() == ["step", "version", "decision", "reason", "output", "path"]
    assert [line.split()[0] for line in lines[1:5]] == ["a", "b", "c", "d"]
    assert lines[-1] == "4 steps: 3 RUN, 1 REUSE"


# ---- what a task does when it starts


def attempt(outcome: Outcome | None, number: int = 3) -> Attempt:
    return Attempt(number, "job", "cluster", {}, {}, outcome)


FAILED, DONE, AT_WORK = attempt(Outcome.FAILED), attempt(Outcome.SUCCEEDED), attempt(None)
NOT_CLEARED = ClearedTask()


@pytest.mark.parametrize(
    ("status", "newest", "expected"),
    [
        (None, None, Claim(1)),
        (Status.FAILED, FAILED, Claim(4)),
        (Status.RUNNING, attempt(Outcome.LOST), Claim(4)),
        (Status.RUNNING, AT_WORK, Follow(AT_WORK)),
        (Status.SUCCESS, DONE, Finished(DONE)),
        (Status.SUCCESS, None, Finished(None)),  # made by Marin
        (Status.RUNNING, DONE, Finished(DONE)),  # its driver died between its last two lines
    ],
)
def test_a_task_starts_by_the_record(status: Status | None, newest: Attempt | None, expected: object) -> None:
    assert decide_start(status, newest, NOT_CLEARED, mine=False) == expected


def test_a_cleared_task_makes_its_own_attempt_again_once() -> None:
    cleared = ClearedTask(finished_attempt=3, tries_allowed_then=3, tries_allowed_now=7)
    assert decide_start(Status.SUCCESS, DONE, cleared, mine=True) == Claim(4, withdraws=True)
    newer = attempt(Outcome.SUCCEEDED, 4)
    assert decide_start(Status.SUCCESS, newer, cleared, mine=True) == Finished(newer)


def test_a_cleared_task_makes_an_output_again_that_has_no_attempt() -> None:
    cleared = ClearedTask(finished_attempt=0, tries_allowed_then=3, tries_allowed_now=7)
    assert decide_start(Status.SUCCESS, None, cleared, mine=False) == Claim(1, withdraws=True)


def test_a_task_that_crashed_after_its_note_does_not_run_again() -> None:
    crashed = ClearedTask(finished_attempt=3, tries_allowed_then=3, tries_allowed_now=3)
    assert decide_start(Status.SUCCESS, DONE, crashed, mine=True) == Finished(DONE)


def test_a_skipped_task_that_runs_after_all_was_cleared() -> None:
    reused = ClearedTask(was_reused=True)
    assert decide_start(Status.SUCCESS, DONE, reused, mine=False) == Claim(4, withdraws=True)
    assert decide_start(Status.SUCCESS, None, reused, mine=False) == Claim(1, withdraws=True)
    assert decide_start(Status.SUCCESS, DONE, reused, mine=True) == Finished(DONE)


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
        found.append(choose_prefix(**sources))
        sources[name] = (lambda: None) if name == "bucket" else nothing
    assert found == ["/argument", "/param", "/tradewind", "/configured", "gs://bucket"]
    with pytest.raises(MissingPrefixError, match=r"TRADEWIND_PREFIX"):
        choose_prefix(**sources)
    sources["environ"] = {"TRADEWIND_PREFIX": "", "MARIN_PREFIX": "/marin"}
    assert choose_prefix(**sources) == "/marin"


def test_a_relative_prefix_is_refused() -> None:
    with pytest.raises(RelativePrefixError, match="The prefix 'outputs' is a relative path"):
        choose_prefix("outputs", None, {}, None, lambda: None)


def test_the_cluster_is_the_steps_own_the_dags_or_the_default() -> None:
    own = ExecutorStep("s", None, None, cluster="own")
    assert choose_cluster(own, "dag", "default") == "own"
    assert choose_cluster(ExecutorStep("s", None, None), "dag", "default") == "dag"
    assert choose_cluster(None, None, "default") == "default"
