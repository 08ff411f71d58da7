"""Gates: what passes, what fails with confidence, and what cannot be judged."""

from __future__ import annotations

import json
import posixpath
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.made_results import made_task
from tests.evaluation.test_compare import better, write
from tradewind import ExecutorStep
from tradewind.evaluation.comparisons import require
from tradewind.evaluation.require import RequireConfig, RequirementError, check_requirement
from tradewind.evaluation.results import Status
from tradewind.recipes.comparing.runs import MissingRunsError
from tradewind.steps import resolve

ARC = made_task("arc", 0.5, 200)
"""Half of 200 are right, with an interval from 0.4314 to 0.5686."""
EVALUATED = ExecutorStep("eval/a", posixpath.join, {})


def gate(folder: Path, path: str, **options: Any) -> dict[str, Any]:
    options = {"task": "arc", "metric": "acc"} | options
    return check_requirement(RequireConfig(path, output_path=str(folder / "gate"), **options))


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ({"at_least": 0.48}, "met"),
        ({"at_least": 0.55}, "met"),  # within the interval: it may be as good
        ({"at_least": 0.55, "confident": False}, "not met"),
        ({"at_least": 0.57}, "not met with confidence"),
        ({"at_most": 0.48}, "met"),
        ({"at_most": 0.41}, "not met with confidence"),
        ({"at_most": 0.48, "confident": False}, "not met"),
    ],
)
def test_bound_fails_only_outside_of_interval(tmp_path: Path, options: dict[str, Any], verdict: str) -> None:
    path = write(tmp_path / "a", ARC)
    if verdict == "met":
        found = gate(tmp_path, path, **options)
        assert [check["verdict"] for check in found["checks"]] == ["met"]
    else:
        with pytest.raises(RequirementError, match=rf"arc acc is not as required: at .*: {verdict}\.\n"):
            gate(tmp_path, path, **options)
    written = json.loads((tmp_path / "gate" / "gate.json").read_text())
    assert written["checks"][0]["verdict"] == verdict and written["score"]["value"] == 0.5


def test_error_has_table_of_scores_and_bounds(tmp_path: Path) -> None:
    with pytest.raises(RequirementError) as error:
        gate(tmp_path, write(tmp_path / "a", ARC), at_least=0.6, at_most=0.55)
    assert str(error.value).splitlines() == [
        "arc acc is not as required: at least 0.6000: not met with confidence.",
        "task  metric  score   95 % interval     required         difference  95 % interval  verdict",
        "arc   acc ↑   0.5000  0.4314 to 0.5686  at least 0.6000                             not met with confidence",
        "arc   acc ↑   0.5000  0.4314 to 0.5686  at most 0.5500                              met",
    ]


@pytest.mark.parametrize(
    ("lost", "confident", "is_met"),
    [(0, True, True), (3, True, True), (3, False, False), (20, True, False), (-20, False, True)],
)
def test_no_worse_than_other_evaluation(tmp_path: Path, lost: int, confident: bool, is_met: bool) -> None:
    before, after = (better(ARC, lost), ARC) if lost >= 0 else (ARC, better(ARC, -lost))
    paths = write(tmp_path / "before", before), write(tmp_path / "after", after)
    if is_met:
        gate(tmp_path, paths[1], no_worse_than=paths[0], confident=confident)
    else:
        with pytest.raises(RequirementError, match=r"no worse than .*/before: not met"):
            gate(tmp_path, paths[1], no_worse_than=paths[0], confident=confident)


def test_lower_is_better_turns_the_direction(tmp_path: Path) -> None:
    down = replace(ARC, higher_is_better={"acc": False})
    paths = write(tmp_path / "before", down), write(tmp_path / "after", better(down, 20))
    with pytest.raises(RequirementError, match="not met with confidence"):
        gate(tmp_path, paths[1], no_worse_than=paths[0])
    gate(tmp_path, paths[0], no_worse_than=paths[1], confident=False)


def nights(folder: Path, *, start: float, **tasks: Any) -> list[str]:
    """Write evaluations of one name that began one after another."""
    return [
        write(folder / "eval" / f"nightly-{name}", task, started_at=start + at, ended_at=start + at + 1)
        for at, (name, task) in enumerate(tasks.items())
    ]


def test_previous_is_newest_earlier_comparable_evaluation(tmp_path: Path) -> None:
    good = better(ARC, 20)
    incomplete = replace(ARC, num_documents=400)
    paths = nights(tmp_path, start=1e9, aaaaaa=good, bbbbbb=incomplete, cccccc=ARC, dddddd=good)
    write(tmp_path / "eval" / "other-eeeeee", good, started_at=1e9)
    (tmp_path / "eval" / "nightly-ffffff").mkdir()
    (tmp_path / "eval" / "nightly-fffff0").mkdir()
    (tmp_path / "eval" / "nightly-fffff0" / "record.json").write_text("{")
    with pytest.raises(RequirementError, match=r"no worse than .*/nightly-aaaaaa of 2001-09-09 01:46 UTC: not met"):
        gate(tmp_path, paths[2], previous=True)
    gate(tmp_path, paths[3], previous=True)


def test_first_evaluation_of_a_name_passes_and_says_so(tmp_path: Path) -> None:
    path, other = nights(tmp_path, start=1e9, bbbbbb=ARC, aaaaaa=replace(ARC, task_version="2"))
    found = gate(tmp_path, path, previous=True)
    assert found["checks"][0]["verdict"] == "met, since there is no earlier evaluation"
    verdict = gate(tmp_path, other, previous=True)["checks"][0]["verdict"]
    assert (
        verdict.startswith("met, since nothing to compare with: ") and "the versions of the task are 1 and 2" in verdict
    )


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"num_documents": 300}, {"at_least": 0.1}, "at least 0.1000: incomplete, with 200 of 300 documents"),
        ({"num_documents": 300}, {"previous": True}, "no worse than the previous: incomplete"),
        ({"status": Status.FAILED, "error": "no data."}, {"at_least": 0.1}, r"arc has no score \(failed\): no data\."),
    ],
)
def test_gate_without_number_fails(tmp_path: Path, change: Any, options: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "a-012345", replace(ARC, **change))
    with pytest.raises(RequirementError, match=message):
        gate(tmp_path, path, **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"task": "arx", "at_least": 0.1},
            ValueError,
            "task='arx': .* no such task; did you mean 'arc'",
        ),
        ({"metric": "bleu", "at_least": 0.1}, ValueError, "metric='bleu': arc has acc, f1, logprob; give one"),
        ({"previous": True}, ValueError, r"previous=True: .*/a is not NAME-HASH"),
        ({"no_worse_than": "/nowhere"}, MissingRunsError, r"the other \(There is no /nowhere/record\.json"),
    ],
)
def test_gate_refuses_what_is_not_there(tmp_path: Path, options: Any, error: Any, message: str) -> None:
    path = write(tmp_path / "a", ARC)
    with pytest.raises(error, match=message):
        gate(tmp_path, path, **options)


def test_metric_of_task_with_one_need_not_be_named(tmp_path: Path) -> None:
    only = replace(ARC, samples=tuple(replace(each, scores={"f2": each.scores["f1"]}) for each in ARC.samples))
    path = write(tmp_path / "a", only, replace(ARC, name="several"))
    assert gate(tmp_path, path, metric=None, at_least=0)["metric"] == "f2"
    assert gate(tmp_path, path, task="several", metric=None, at_least=0)["metric"] == "acc"


def test_gate_is_named_after_its_step_and_counts_its_bounds() -> None:
    step = require(EVALUATED, "arc", at_least=0.5, no_worse_than="old/x-012345")
    resolved = resolve([step], "/prefix").steps[-1]
    assert resolved.version["name"] == "eval/a/require/arc"
    assert resolved.version["config"] == {
        "evaluation": "DEP[0]", "task": "arc", "at_least": 0.5, "no_worse_than": "old/x-012345"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: require(EVALUATED, "arc"), "give at_least, at_most, no_worse_than or previous=True"),
        (lambda: require(EVALUATED, "arc", at_least="x"), "Step 'eval/a/require/arc': at_least='x': give a number"),
        (lambda: require(EVALUATED, "arc", at_least=float("nan")), "at_least=nan: give a number"),
        (lambda: require(EVALUATED, "", at_least=0), "task='': give a text"),
        (lambda: require("old/x", "arc", at_least=0), "evaluation='old/x' is no step, so give the gate a name="),
        (lambda: require(EVALUATED, "arc", at_lest=0), r"require\(at_lest=...\) is no field .*did you mean at_least"),
        (lambda: require(EVALUATED, "arc", no_worse_than=7), "no_worse_than=7: give a step"),
        (lambda: require(None, "arc", at_least=0, name="g"), "Step 'g': evaluation=None: give a step"),
    ],
)
def test_gate_refuses_bad_input(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
