"""Boards of the speedruns below a prefix, from Tradewind's results files and Marin's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tradewind.recipes.speedruns import found
from tradewind.recipes.speedruns.found import read_speedrun_boards
from tradewind.recipes.speedruns.results import C4_BITS_PER_BYTE, RESULTS_FILE


def write(prefix: Path, name: str, *infos: dict[str, Any]) -> str:
    """Write a results file of Marin's form."""
    folder = prefix / name
    folder.mkdir(parents=True)
    (folder / RESULTS_FILE).write_text(json.dumps({"runs": [{"run_info": info} for info in infos]}))
    return str(folder)


def test_speedruns_are_ranked_by_each_number_that_they_have(tmp_path: Path) -> None:
    author = {"name": "Ada\n\x1b[31m", "affiliation": "", "url": None}
    paths = [
        write(tmp_path, "slow", {"eval_loss": 2.0, "model_flops": 1e18, "author": author, "description": "Wide"}),
        write(tmp_path, "quick", {"eval_loss": 3.0, "model_flops": 1e15, "training_time": 60.0}),
        write(tmp_path, "waste", {"eval_loss": 3.5, "model_flops": 1e17}),
        write(tmp_path, "marins", {C4_BITS_PER_BYTE: 1.2}, {C4_BITS_PER_BYTE: 1.1, "eval_loss": float("nan")}),
    ]
    boards = read_speedrun_boards(str(tmp_path), [*paths, str(tmp_path / "none")])
    assert boards.problems == () and [board.metric for board in boards.boards] == [C4_BITS_PER_BYTE, "eval_loss"]
    assert [(run.label, run.value) for run in boards.boards[0].runs] == [("marins", 1.1)]
    losses = boards.boards[1].runs
    assert [(run.label, run.rank, run.is_on_frontier) for run in losses] == [
        ("slow", 1, True), ("quick", 2, True), ("waste", 3, False), ("marins", 4, False)
    ]  # fmt: skip
    assert losses[3].value is None, "it diverged"
    assert losses[0].author.isprintable() and losses[0].description == "Wide" and losses[1].seconds == 60.0


@pytest.mark.parametrize("info", [{"eval_loss": None, "model_flops": 1e18}, {"eval_loss": "low"}, {}])
def test_speedrun_without_a_number_is_named(tmp_path: Path, info: dict[str, Any]) -> None:
    paths = [write(tmp_path, "good", {"eval_loss": 2.0}), write(tmp_path, "none", info)]
    boards = read_speedrun_boards(str(tmp_path), paths)
    assert [run.label for run in boards.boards[0].runs] == ["good"]
    assert boards.problems == (
        f"{paths[1]}: its {RESULTS_FILE} has neither {C4_BITS_PER_BYTE} nor eval_loss: none was measured, or none was "
        "finite.",
    )


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"runs": []}',
        '{"runs": [{"other": 1}]}',
        '{"runs": [1]}',
        "[" * 10_000,
        " " * ((1 << 20) + 1),
        '{"x": [' + "[]," * 50_000 + "0]}",
    ],
)
def test_unreadable_results_are_named_beside_the_others(tmp_path: Path, text: str) -> None:
    paths = [write(tmp_path, "good", {"eval_loss": 2.0}), write(tmp_path, "bad")]
    Path(paths[1], RESULTS_FILE).write_text(text)
    boards = read_speedrun_boards(str(tmp_path), paths)
    assert [run.label for run in boards.boards[0].runs] == ["good"]
    assert len(boards.problems) == 1 and f"{paths[1]}: its {RESULTS_FILE}" in boards.problems[0]


def test_boards_of_speedruns_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found, "MAX_SPEEDRUNS", 1)
    paths = [write(tmp_path, name, {"eval_loss": 2.0}) for name in ("a", "b")]
    boards = read_speedrun_boards(str(tmp_path), paths)
    assert len(boards.boards[0].runs) == 1 and "narrow the prefix" in boards.problems[0]
