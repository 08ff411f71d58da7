"""Speedruns on one board: the best first under each budget, and a list of those without a result."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.comparing.ended_runs import write_failed_run, write_run
from tradewind import ExecutorStep, experiment_dag, versioned
from tradewind.recipes.comparing.runs import MissingRunsError
from tradewind.recipes.speedruns.board import LeaderboardConfig, write_leaderboard
from tradewind.recipes.speedruns.steps import leaderboard, speedrun
from tradewind.recipes.steps import tokenize, train

pytestmark = pytest.mark.slow

RUNS = {"a": (3.0, 1e6), "b": (2.5, 4e6), "c": (2.8, 2e6), "d": (2.6, 9e6), "e": (2.9, 5e5)}
"""Label → loss and FLOPs."""


def result(loss: float, flops: float | None, **others: Any) -> dict[str, Any]:
    return {"eval_loss": loss, "model_flops": flops, "model_size": 1000, "mfu": None, **others}


def config(folder: Path, runs: dict[str, str] | None = None, **options: Any) -> LeaderboardConfig:
    if runs is None:
        author = {"name": "Ada | Lovelace", "affiliation": "Home", "url": None}
        summary: dict[str, Any] = {"author": author, "description": "Two\nlines."}
        runs = {label: write_run(folder, label, result(*numbers, **summary)) for label, numbers in RUNS.items()}
    return LeaderboardConfig(runs, str(folder / "out"), **options)


def table(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "out" / "leaderboard.csv").open()))


def test_runs_ranked_under_smallest_budget_they_fit(tmp_path: Path) -> None:
    summary = write_leaderboard(config(tmp_path, budgets=[4e6, 1e6], title="Race"))
    assert [(row["budget"], row["rank"], row["run"]) for row in table(tmp_path)] == [
        ("1e+06", "1", "e ★"), ("1e+06", "2", "a"),
        ("4e+06", "1", "b ★"), ("4e+06", "2", "c ★"),
        ("open", "1", "d"),
    ]  # fmt: skip
    assert summary["best"] == "b" and summary["best_under"] == {"1e+06": "e", "4e+06": "b"}
    assert summary["runs"] == {"e": 2.9, "a": 3.0, "b": 2.5, "c": 2.8, "d": 2.6}
    assert write_leaderboard(config(tmp_path / "more", budgets=[4e6, 9e6]))["best_under"] == {
        "4e+06": "b",
        "9e+06": "b",
    }


def test_runs_without_budgets_are_one_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = write_leaderboard(config(tmp_path))
    assert [row["run"][0] for row in table(tmp_path)] == list("bdcea")
    assert list(table(tmp_path)[0]) == [
        "rank", "run", "author", "eval_loss", "model_flops", "model_size", "description"
    ]  # fmt: skip
    assert (summary["best"], summary["best_under"]) == ("b", {})
    assert "1     b ★  Ada | Lovelace" in capsys.readouterr().out


def test_board_written_as_page_picture_and_json(tmp_path: Path) -> None:
    write_leaderboard(config(tmp_path, budgets=[1e6], title="Race"))
    page = (tmp_path / "out" / "leaderboard.md").read_text()
    assert page.startswith("# Race\n\nBy eval_loss, the lowest first.")
    assert r"| Ada \| Lovelace |" in page and "Two lines." in page
    assert (tmp_path / "out" / "leaderboard.png").read_bytes().startswith(b"\x89PNG")
    first, *_ = json.loads((tmp_path / "out" / "leaderboard.json").read_text())
    assert (first["run"], first["budget"], first["rank"], first["is_on_frontier"]) == ("e", 1e6, 1, True)
    assert (first["author"]["affiliation"], first["description"]) == ("Home", "Two lines.")


def test_failed_run_named_and_others_ranked(tmp_path: Path) -> None:
    runs = {"a": write_run(tmp_path, "a", result(3.0, 1e6)), "bad": write_failed_run(tmp_path, "bad", "no luck")}
    with pytest.raises(MissingRunsError, match=r"1 of 2 runs have no result: bad \(failed: ValueError: no luck\)\. "):
        write_leaderboard(config(tmp_path, runs))
    assert [row["run"] for row in table(tmp_path)] == ["a ★"]
    assert "- bad: failed: ValueError: no luck" in (tmp_path / "out" / "leaderboard.md").read_text()


def test_run_without_cost_is_named_only_under_budgets(tmp_path: Path) -> None:
    runs = {"a": write_run(tmp_path, "a", result(3.0, 1e6)), "free": write_run(tmp_path, "free", result(2.0, None))}
    with pytest.raises(MissingRunsError, match="free \\(returned no 'model_flops', but eval_loss, model_size\\)"):
        write_leaderboard(config(tmp_path, runs, budgets=[1e7]))
    summary = write_leaderboard(config(tmp_path, runs))
    assert summary["best"] == "free", "the cost matters only under budgets"
    assert [row["run"] for row in table(tmp_path)] == ["free", "a ★"]


RAW = ExecutorStep("raw", None, {"n": versioned(3)})
TOKENS = tokenize("tokens", RAW, RAW)
TRAINED = train("trained", TOKENS, "tiny", num_train_steps=9, learning_rate=0.1, batch_size=8, seq_len=32)
SPEEDRUNS = {label: speedrun(label, TRAINED, author="Ada", description=label) for label in ("a", "b")}


def test_board_waits_for_all_runs_and_tolerates_failures() -> None:
    dag = experiment_dag("race", [leaderboard("board", SPEEDRUNS, budgets=[1e6])])
    assert dag is not None and dag.get_task("board").trigger_rule == "all_done"
    assert dag.get_task("board").upstream_task_ids == {"a", "b"}


@pytest.mark.parametrize(
    ("runs", "options", "sentence"),
    [
        ({}, {}, "Step 'l': runs is {}: give labels and steps"),
        ({"a": TRAINED}, {}, "runs['a'] is step 'trained', which is a training: give a step of speedrun(...)"),
        (
            SPEEDRUNS,
            {"budgets": [0]},
            "Step 'l': budgets=[0]: give a list of numbers from 1e-100 to 1e100, such as [1e21].",
        ),
        (SPEEDRUNS, {"cost": ""}, "Step 'l': cost='': give a text of at least one character."),
    ],
)
def test_invalid_input_refused_at_dag_parse(runs: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        leaderboard("l", runs, **options)
    assert sentence in str(error.value)
