"""Plans from a real store: a plan runs optional checks only on request and reports their results."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.plans.planning import decisions
from tradewind import ExecutorStep, this_output_path, versioned
from tradewind.attempts.decisions import Claim, Finished, RerunRequest, TaskIdentity, decide_start, start_warning
from tradewind.plans.decisions import EVERYTHING
from tradewind.plans.plan import Decision, Plan, chunk_key, chunks, planned_in
from tradewind.plans.planning import plan_now, read_outputs
from tradewind.plans.selection import Selection
from tradewind.records.attempts import Attempt, utc_now
from tradewind.records.info_files import write_step_info
from tradewind.records.lease_store import LeaseStore
from tradewind.records.lifecycle import claim_attempt, commit_attempt
from tradewind.records.record import RecordState, Status, read_record, write_status
from tradewind.steps import ResolvedStep, output_path_of, resolve


def work(config: Any) -> None: ...


first = ExecutorStep("first", work, {"n": versioned(1), "out": this_output_path()})
second = ExecutorStep("second", work, {"data": output_path_of(first), "out": this_output_path()})


def make(step: ResolvedStep, number: int = 1) -> None:
    """Make the output of ``step`` as its driver does."""
    folder = Path(step.output_path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data").write_text("0123456789")
    (folder / "more").write_text("01234")
    store = LeaseStore(step.output_path)
    spec = {"resources": {"kind": "cpu"}}
    attempt = Attempt(number, f"{step.name}-job-{number}", "", {"script": "test"}, spec, started_at=utc_now())
    assert claim_attempt(store, step.output_path, store.read(), attempt, step.digest, 30.0) is not None
    running = store.take_over(attempt.job, "owner")
    commit_attempt(partial(store.change, running), step.output_path, attempt, lambda: None)


Tasks = list[tuple[str, ResolvedStep]]


@pytest.fixture
def tasks(tmp_path: Path) -> Tasks:
    experiment = resolve([second], str(tmp_path))
    for step in experiment.steps:
        make(step)
    return [(step.name, step) for step in experiment.steps]


def plan(tasks: Tasks, *, verify: bool = False, selection: Selection = EVERYTHING) -> Plan:
    outputs = read_outputs([step.output_path for _, step in tasks], verify=verify)
    return plan_now("/", tasks, ["second"], outputs, selection)


def test_finished_outputs_are_reused_and_verified_ones_too(tasks: Tasks) -> None:
    for verify in (False, True):
        assert decisions(plan(tasks, verify=verify)) == {"first": "REUSE", "second": "REUSE"}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "more").unlink(), "ran, output damaged: more: missing"),
        (lambda folder: (folder / "more").write_text("01235"), "ran, output damaged: more: checksum differs"),
        (lambda folder: (folder / "added").write_text(""), "ran, output damaged: added: not in the manifest"),
        (lambda folder: (folder / ".attempts/1/manifest.json").unlink(), "ran, manifest gone"),
    ],
    ids=["missing", "changed", "added", "no manifest"],
)
def test_full_check_finds_damage(tasks: Tasks, damage: Any, reason: str) -> None:
    damage(Path(tasks[1][1].output_path))
    assert decisions(plan(tasks))["second"] == "REUSE", "the cheap check reads only the largest file"
    thorough = plan(tasks, verify=True)
    assert decisions(thorough) == {"first": "REUSE", "second": "RUN"}
    assert thorough.steps[1].reason == reason


def test_unread_damaged_output_is_reported_but_not_remade(tasks: Tasks) -> None:
    (Path(tasks[0][1].output_path) / "more").unlink()
    checked = plan(tasks, verify=True)
    assert decisions(checked) == {"first": "PRUNED", "second": "REUSE"}
    assert checked.warnings == (
        "verify: 'first' ran, output damaged: more: missing; nothing that runs reads it, so it is not made again "
        "unless it is forced.",
    )


def test_damage_found_by_plan_makes_task_rerun_step(tasks: Tasks) -> None:
    step = tasks[1][1]
    (Path(step.output_path) / "more").write_text("01235")
    lines = json.loads(json.dumps(chunks(plan(tasks, verify=True))[chunk_key(0)]))
    request = RerunRequest.from_plan(planned_in(lines, "second"))  # as the task reads it in an XCom
    record = read_record(step.output_path)
    assert record.state is RecordState.FINISHED, "the step's task reads only the largest file"
    assert decide_start(record, TaskIdentity({"run": "ours"}), request) == Claim(withdraws=True)


def test_step_remade_after_plan_found_damage_is_reused(tasks: Tasks) -> None:
    step = tasks[1][1]
    (Path(step.output_path) / "more").unlink()
    request = RerunRequest.from_plan(plan(tasks, verify=True).of_task("second"))
    make(step, number=2)
    start = decide_start(read_record(step.output_path), TaskIdentity({"run": "ours"}), request)
    assert isinstance(start, Finished) and start.lease is not None and start.lease.attempt == 2


def test_task_reusing_other_version_warns_like_the_plan(tmp_path: Path) -> None:
    def at_one_path(n: int) -> ResolvedStep:
        step = ExecutorStep("first", work, {"n": versioned(n)}, override_output_path=f"{tmp_path}/shared")
        return resolve([step], str(tmp_path)).of(step)

    mine, other = at_one_path(1), at_one_path(2)
    make(other)  # another run makes it after this plan
    start = decide_start(read_record(mine.output_path), TaskIdentity({"run": "mine"}), RerunRequest())
    warning = "'first' is reused from another version: override_output_path sets its output path."
    assert start_warning(start, mine) == warning
    assert plan([("first", mine), ("second", mine)]).warnings == (warning,)
    assert start_warning(start, other) is None and start_warning(Claim(), mine) is None


def test_full_check_names_outputs_without_manifest(tmp_path: Path) -> None:
    experiment = resolve([first], str(tmp_path))
    (step,) = experiment.steps
    Path(step.output_path).mkdir(parents=True)
    Path(step.output_path, "data").write_text("Marin's")
    write_status(step.output_path, Status.SUCCESS)
    checked = plan([("first", step)], verify=True)
    assert (checked.steps[0].decision, checked.steps[0].is_damaged) == (Decision.REUSE, False)
    assert checked.warnings == (
        "verify: 1 outputs that Marin's executor made have no manifest and were not compared, such as "
        f"{step.output_path}.",
    )


def test_estimate_is_that_of_the_earlier_attempt(tasks: Tasks) -> None:
    forced = plan(tasks, selection=Selection(force=("second",)))
    assert forced.steps[1].decision is Decision.RUN
    assert str(forced.steps[1].estimate).endswith(" s on 1 CPU")


def test_forced_input_warns_about_reused_consumers(tasks: Tasks) -> None:
    forced = plan(tasks, selection=Selection(force=("first",)))
    assert decisions(forced) == {"first": "RUN", "second": "REUSE"}
    assert forced.warnings == (
        "'second' is reused although its input 'first' runs again: force_downstream reruns both.",
    )


def test_plan_names_earlier_version_and_changed_inputs(tmp_path: Path) -> None:
    def chain(seed: int) -> Tasks:
        raw = ExecutorStep("raw", work, {"seed": versioned(seed)})
        middle = ExecutorStep("middle", work, {"input": output_path_of(raw)})
        last = ExecutorStep("last", work, {"input": output_path_of(middle)})
        return [(step.name, step) for step in resolve([last], str(tmp_path)).steps]

    old, new = chain(1), chain(2)
    for _, step in old:
        make(step)
        write_step_info(step, "work")
    outputs = read_outputs([step.output_path for _, step in new])
    lines = plan_now(str(tmp_path), new, ["last"], outputs).steps
    assert [line.earlier for line in lines] == [step.hash for _, step in old]
    assert [line.changed_inputs for line in lines] == [(), ("raw",), ("raw",)]
    assert [line.inputs for line in lines] == [(), ("raw",), ("middle",)]
