"""Tables and leaderboards of evaluations: ties, gaps with their reasons, and no mean over tasks."""

from __future__ import annotations

import csv
import json
import posixpath
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.made_results import made_record, made_task
from tests.evaluation.test_compare import better, write
from tests.recipes.comparing.ended_runs import write_failed_run
from tradewind import ExecutorStep
from tradewind.evaluation.comparisons import compare_evaluations, compile_results, leaderboard
from tradewind.evaluation.compiled import COLUMNS, CompileResultsConfig, compile_table
from tradewind.evaluation.leaderboard import LeaderboardConfig, write_leaderboard
from tradewind.evaluation.results import Model, Status
from tradewind.recipes.comparing.runs import MissingRunsError
from tradewind.steps import resolve

EVALUATED = ExecutorStep("eval/a", posixpath.join, {})
OTHER = ExecutorStep("eval/b", posixpath.join, {})


def accuracy(name: str, share: float, **options: Any) -> Any:
    task = made_task(name, share, 200, higher_is_better={"acc": True}, **options)
    scores = [{metric: score for metric, score in each.scores.items() if metric == "acc"} for each in task.samples]
    samples = zip(task.samples, scores, strict=True)
    return replace(task, samples=tuple(replace(sample, scores=own) for sample, own in samples))


def four(folder: Path) -> dict[str, Any]:
    """Return labels of four models, the first two as good as each other."""
    arc, hard = accuracy("arc", 0.5), accuracy("hard", 0.3, seed=2)
    perplexity = replace(arc, name="text", metrics={"acc": 9.5}, higher_is_better={"acc": False})
    return {
        "best": write(folder / "best", better(arc, 42), hard, perplexity),
        "also": write(folder / "also", better(arc, 40), replace(hard, status=Status.FAILED, error="no data")),
        "other version": write(folder / "other", replace(arc, task_version="2")),
        "worst": [write(folder / "worst", arc), write(folder / "worst_hard", accuracy("hard", 0.3, errors=40, seed=2))],
    }


def test_rank_counts_scores_that_are_better_with_confidence(tmp_path: Path) -> None:
    config = LeaderboardConfig(four(tmp_path), str(tmp_path / "out"), tasks=["arc"])
    assert write_leaderboard(config) == {
        "rankings": 2, "first": {"best": 1, "also": 1, "other version": 0, "worst": 0}
    }  # fmt: skip
    rows = list(csv.DictReader((tmp_path / "out" / "leaderboard.csv").open()))
    assert [(row["task_version"], row["label"], row["rank"]) for row in rows if row["rank"]] == [
        ("1", "best", "1"), ("1", "also", "1"), ("1", "worst", "3"), ("2", "other version", "1")
    ]  # fmt: skip
    assert rows[2]["difference_to_first"] == "-0.21" and float(rows[2]["difference_high"]) < 0


def test_page_explains_gaps_and_has_no_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_leaderboard(LeaderboardConfig(four(tmp_path), str(tmp_path / "out"), title="<b>"))
    text = (tmp_path / "out" / "leaderboard.md").read_text()
    assert text.startswith("# \\<b>\n\n") and "There is no mean over unlike tasks." in text
    parts = {part.split("\n")[0]: part for part in text.split("## ")}
    arc = parts["arc acc ↑ (version 1, 0 shots)"]
    assert "| 1 | also | 0.7000 | 0.6332 to 0.7593 | -0.0100 | " in arc and "| 3 | worst | 0.5000 |" in arc
    assert "- other version: measured with version 2, in a ranking of its own" in arc
    hard = parts["hard acc ↑ (version 1, 0 shots)"]
    assert "- also: failed, with 0 of 200 documents: no data" in hard and "- other version: not measured" in hard
    assert "- worst: incomplete, with 160 of 200 documents: Of 200 documents 200 were attempted, 40 with" in hard
    perplexity = parts["text acc ↓ (version 1, 0 shots)"]
    assert "|  | best | 9.5 |  |" in perplexity  # no rank without an interval
    assert "best" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "out" / "leaderboard.jsonl").read_text().splitlines()]
    assert len({tuple(row) for row in rows}) == 1
    assert ["text", "not measured"] in [[row["task"], row["gap"]] for row in rows if row["label"] == "also"]


def test_task_without_any_score_is_on_the_page(tmp_path: Path) -> None:
    failed = write(tmp_path / "one", made_task("arc", status=Status.FAILED, error="gone", samples=()))
    write_leaderboard(LeaderboardConfig({"one": failed}, str(tmp_path / "out")))
    assert "## arc\n\n- one: failed, with 0 of 100 documents: gone" in (tmp_path / "out" / "leaderboard.md").read_text()


def test_table_has_row_for_each_score_and_task(tmp_path: Path) -> None:
    summary = compile_table(CompileResultsConfig(four(tmp_path), str(tmp_path / "out")))
    assert summary["rows"] == 8 and summary["scores"]["worst"] == {"arc acc": 0.5, "hard acc": None}
    rows = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert all(list(row) == list(COLUMNS) for row in rows)
    table = list(csv.DictReader((tmp_path / "out" / "results.csv").open()))
    assert [(row["label"], row["task"], row["status"], row["scored"]) for row in table] == [
        ("best", "arc", "succeeded", "200"), ("best", "hard", "succeeded", "200"), ("best", "text", "succeeded", "200"),
        ("also", "arc", "succeeded", "200"), ("also", "hard", "failed", ""),
        ("other version", "arc", "succeeded", "200"),
        ("worst", "arc", "succeeded", "200"), ("worst", "hard", "incomplete", "160"),
    ]  # fmt: skip
    text = (tmp_path / "out" / "results.md").read_text()
    assert "| worst | tiny | 2023-11-14 22:13 UTC | arc | 1 | 0 | acc ↑ | 0.5000 | 0.4314 to 0.5686 | 200" in text


@pytest.mark.parametrize(
    ("config", "function", "page"),
    [(CompileResultsConfig, compile_table, "results.md"), (LeaderboardConfig, write_leaderboard, "leaderboard.md")],
)
def test_others_are_shown_if_an_evaluation_failed(tmp_path: Path, config: Any, function: Any, page: str) -> None:
    failed = write_failed_run(tmp_path, "eval", "No slice|left")
    model = Model("/m/<x>", "a|b\n", None)
    given = {"good": write(tmp_path / "good", made_task("arc"), model=model), "bad": failed}
    with pytest.raises(MissingRunsError, match=rf"^1 of 2 runs have no result: bad \(.*No slice.*in .*/{page}"):
        function(config(given, str(tmp_path / "out")))
    text = (tmp_path / "out" / page).read_text()
    assert "## Without a result\n\n- bad: " in text and "a\\|b" in text
    with pytest.raises(MissingRunsError, match=r"1 of 1 runs have no result: x \(There is no .*/no/record\.json"):
        function(config({"x": str(tmp_path / "no")}, str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ["arx"]}, "tasks: no evaluation has 'arx'; did you mean 'arc'?"),
        ({"metrics": ["f2"]}, "metrics: no evaluation has 'f2'; there are acc, f1"),
    ],
)
def test_unknown_task_of_leaderboard_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "a", made_task("arc"))
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        write_leaderboard(LeaderboardConfig({"a": path}, str(tmp_path / "out"), **options))


def test_version_counts_evaluations_and_tasks_not_titles() -> None:
    def version(step: ExecutorStep) -> Any:
        return resolve([step], "/prefix").steps[-1].version

    table = compile_results("t", [EVALUATED, OTHER], title="One")
    assert version(table) == version(compile_results("t", {"eval/a": EVALUATED, "eval/b": OTHER}))
    assert version(table)["config"] == {"evaluations.eval/a": "DEP[0]", "evaluations.eval/b": "DEP[1]"}
    board = version(leaderboard("b", {"a": [EVALUATED, "old/x-012345"]}, tasks=["arc"]))
    assert board["config"] == {
        "evaluations.a.[0]": "DEP[0]", "evaluations.a.[1]": "old/x-012345", "tasks": ["arc"]
    }  # fmt: skip
    compared = compare_evaluations("c", EVALUATED, OTHER, before_label="main")
    assert version(compared)["config"] == {"before": "DEP[0]", "after": "DEP[1]"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: compile_results("t", []), r"Step 't': evaluations=\[\]: give steps with different names"),
        (lambda: compile_results("t", [EVALUATED, EVALUATED]), "give steps with different names"),
        (lambda: compile_results("t", {}), r"evaluations=\{\}: give a mapping of at most 50 labels"),
        (lambda: compile_results("t", {"": EVALUATED}), "give a mapping of at most 50 labels"),
        (lambda: leaderboard("t", dict.fromkeys(map(str, range(51)), EVALUATED)), "give a mapping of at most 50"),
        (lambda: leaderboard("t", {"a": 3}), r"evaluations\['a'\]=3: give a step"),
        (lambda: leaderboard("t", {"a": [EVALUATED, None]}), r"evaluations\['a'\]\[1\]=None: give a step"),
        (lambda: leaderboard("t", {"a": []}), r"evaluations\['a'\]=\[\]: give a step"),
        (lambda: leaderboard("t", {"a": EVALUATED}, task=["x"]), r"leaderboard\(task=...\) is no field"),
        (lambda: leaderboard("t", {"a": EVALUATED}, tasks="arc"), "tasks='arc': give a list of texts"),
        (lambda: compare_evaluations("t", EVALUATED, ""), "after='': give a step"),
        (lambda: compare_evaluations("t", EVALUATED, OTHER, after_label="before"), "give another label than"),
    ],
)
def test_steps_of_tables_refuse_bad_input(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_record_of_later_version_is_compared(tmp_path: Path) -> None:
    path = write(tmp_path / "a", made_task("arc"))
    file = tmp_path / "a" / "record.json"
    file.write_text(file.read_text().replace("tradewind.evaluation/1", "tradewind.evaluation/9"))
    table = compile_table(CompileResultsConfig({"a": path}, str(tmp_path / "out")))
    assert table["rows"] == 3 and made_record().is_later is False
