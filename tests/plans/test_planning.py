"""Planning from a real store: what is checked only where that is asked for, and what a plan says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tradewind import ExecutorStep, this_output_path, versioned
from tradewind.plans.plan import EVERYTHING, Decision, Plan
from tradewind.plans.planning import plan_now, read_outputs
from tradewind.plans.selection import Selection
from tradewind.records.attempts import Attempt, utc_now
from tradewind.records.lease_store import LeaseStore
from tradewind.records.turns import commit_turn, take_turn
from tradewind.steps import ResolvedStep, output_path_of, resolve


def nothing(config: Any) -> None:
    """What the steps would do."""


first = ExecutorStep("first", nothing, {"n": versioned(1), "out": this_output_path()})
second = ExecutorStep("second", nothing, {"data": output_path_of(first), "out": this_output_path()})


def made(step: ResolvedStep) -> None:
    """Make the output of ``step`` as its driver does."""
    folder = Path(step.output_path)
    folder.mkdir(parents=True)
    (folder / "data").write_text("0123456789")
    (folder / "more").write_text("01234")
    store = LeaseStore(step.output_path)
    spec = {"resources": {"kind": "cpu"}}
    attempt = Attempt(1, f"{step.name}-job", "", {"script": "test"}, spec, started_at=utc_now())
    held = take_turn(store, step.output_path, None, attempt, step.digest, 30.0)
    assert held is not None
    begun = store.begin(attempt.job, "keeper")
    commit_turn(lambda **changes: store.change(begun, **changes), step.output_path, attempt)


@pytest.fixture
def tasks(tmp_path: Path) -> list[tuple[str, ResolvedStep]]:
    experiment = resolve([second], str(tmp_path))
    for step in experiment.steps:
        made(step)
    return [(step.name, step) for step in experiment.steps]


def plan(tasks: list[tuple[str, ResolvedStep]], *, verify: bool = False, selection: Selection = EVERYTHING) -> Plan:
    outputs = read_outputs([step.output_path for _, step in tasks], verify=verify)
    return plan_now("/", tasks, ["second"], outputs, selection)


def decided(made: Plan) -> dict[str, Decision]:
    return {step.name: step.decision for step in made.steps}


def test_finished_outputs_are_reused_and_verified_ones_too(tasks: list[tuple[str, ResolvedStep]]) -> None:
    for verify in (False, True):
        assert decided(plan(tasks, verify=verify)) == {"first": Decision.REUSE, "second": Decision.REUSE}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "more").unlink(), "ran, output damaged: more: missing"),
        (lambda folder: (folder / "more").write_text("01235"), "ran, output damaged: more: checksum differs"),
        (lambda folder: (folder / "added").write_text(""), "ran, output damaged: added: not in the manifest"),
        (lambda folder: (folder / ".manifest.json").unlink(), "ran, manifest gone"),
    ],
    ids=["missing", "changed", "added", "no manifest"],
)
def test_damage_is_found_where_it_is_looked_for(
    tasks: list[tuple[str, ResolvedStep]], damage: Any, reason: str
) -> None:
    damage(Path(tasks[1][1].output_path))
    assert decided(plan(tasks))["second"] is Decision.REUSE, "the cheap check looks at the largest file only"
    thorough = plan(tasks, verify=True)
    assert decided(thorough) == {"first": Decision.REUSE, "second": Decision.RUN}
    assert thorough.steps[1].reason == reason


def test_an_output_whose_witness_is_gone_is_never_reused(tasks: list[tuple[str, ResolvedStep]]) -> None:
    (Path(tasks[1][1].output_path) / "data").unlink()
    assert plan(tasks).steps[1].reason == "ran, output gone"


def test_an_estimate_comes_from_the_attempt_that_made_it(tasks: list[tuple[str, ResolvedStep]]) -> None:
    forced = plan(tasks, selection=Selection(force=("second",)))
    assert forced.steps[1].decision is Decision.RUN
    assert str(forced.steps[1].estimate).endswith(" s on 1 CPU")


def test_a_forced_input_leaves_a_warning_about_what_is_still_made_from_the_old_one(
    tasks: list[tuple[str, ResolvedStep]],
) -> None:
    forced = plan(tasks, selection=Selection(force=("first",)))
    assert decided(forced) == {"first": Decision.RUN, "second": Decision.REUSE}
    assert forced.warnings == (
        "'second' is reused although its input 'first' is made again: force_downstream would renew it.",
    )
