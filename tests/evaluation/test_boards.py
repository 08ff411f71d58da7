"""Boards of all evaluations below a prefix: comparable scores only, with intervals, and gaps with their reasons."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.evaluation.made_results import made_record, made_task
from tests.evaluation.test_leaderboard import accuracy
from tradewind.evaluation import boards
from tradewind.evaluation.boards import Board, read_boards
from tradewind.evaluation.results import RECORD_FILE, Status, write_results


def write(prefix: Path, name: str, *tasks: object, **options: object) -> str:
    write_results(str(prefix / name), made_record(**options), list(tasks))  # type: ignore[arg-type]
    return str(prefix / name)


def board_of(found: tuple[Board, ...], title: str) -> Board:
    [board] = [board for board in found if board.title.startswith(title)]
    return board


def test_only_scores_of_the_same_question_share_a_board(tmp_path: Path) -> None:
    low, high = accuracy("arc", 0.3), accuracy("arc", 0.7)
    paths = [
        write(tmp_path, "low", low, commit="c0ffee"),
        write(tmp_path, "high", high),
        write(tmp_path, "version", replace(high, task_version="2")),
        write(tmp_path, "shots", replace(high, num_fewshot=5)),
    ]
    found = read_boards(str(tmp_path), [*paths, str(tmp_path / "none")])
    assert found.problems == ()
    labels = [[score.label for score in board.scores] for board in found.boards]
    assert labels == [["high", "low"], ["version"], ["shots"]]
    best, worst = found.boards[0].scores
    assert best.low is not None and best.value is not None and best.high is not None
    assert best.low < best.value < best.high and best.output_path == paths[1] and worst.commit == "c0ffee"


def test_lower_is_better_comes_first(tmp_path: Path) -> None:
    tasks = [replace(accuracy("loss", share), higher_is_better={"acc": False}) for share in (0.7, 0.3)]
    paths = [write(tmp_path, name, task) for name, task in zip("ab", tasks, strict=True)]
    [board] = read_boards(str(tmp_path), paths).boards
    assert [score.label for score in board.scores] == ["b", "a"] and board.higher_is_better is False


def test_score_with_low_coverage_is_incomplete_and_last(tmp_path: Path) -> None:
    failed = replace(accuracy("arc", 0.9), status=Status.FAILED, samples=(), error="no data\x1b[31m")
    paths = [
        write(tmp_path, "failed", failed),
        write(tmp_path, "incomplete", accuracy("arc", 0.9, errors=40)),
        write(tmp_path, "whole", accuracy("arc", 0.1)),
    ]
    [board] = read_boards(str(tmp_path), paths).boards
    assert [(score.label, score.status) for score in board.scores] == [
        ("whole", "succeeded"), ("failed", "failed"), ("incomplete", "incomplete")
    ]  # fmt: skip
    assert [score.value is None for score in board.scores] == [False, True, True]
    assert board.scores[2].coverage == 0.8 and board.scores[1].problem.isprintable()


def test_group_says_how_many_tasks_are_pooled(tmp_path: Path) -> None:
    tasks = [replace(accuracy(name, 0.5), groups=("both",)) for name in ("one", "two")]
    found = read_boards(str(tmp_path), [write(tmp_path, "a", *tasks)])
    assert board_of(found.boards, "both acc").pooled_tasks == 2 and board_of(found.boards, "one acc").pooled_tasks == 0
    assert "2 tasks pooled by document" in board_of(found.boards, "both acc").title


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"schema": "other/1"}', " " * ((4 << 20) + 1), '{"schema": {"a": NaN}}', "[" + "[]," * 200_000 + "0]"],
)
def test_unreadable_record_is_named_beside_the_others(tmp_path: Path, text: str) -> None:
    paths = [write(tmp_path, "good", made_task("arc")), write(tmp_path, "bad", made_task("arc"))]
    Path(paths[1], RECORD_FILE).write_text(text)
    found = read_boards(str(tmp_path), paths)
    assert len(found.problems) == 1 and f"{paths[1]}: its record.json" in found.problems[0]
    assert {score.label for board in found.boards for score in board.scores} == {"good"}


def test_record_of_a_later_version_is_shown_with_a_note(tmp_path: Path) -> None:
    path = write(tmp_path, "later", accuracy("arc", 0.5))
    record = Path(path, RECORD_FILE)
    record.write_text(json.dumps(json.loads(record.read_text()) | {"schema": "tradewind.evaluation/9", "new": 1}))
    found = read_boards(str(tmp_path), [path])
    assert len(found.boards) == 1 and "a later version of Tradewind" in found.problems[0]


@pytest.mark.parametrize(
    ("limit", "count"), [("MAX_EVALUATIONS", 1), ("MAX_BOARDS", 1), ("MAX_SCORES", 1), ("_MAX_BYTES", 0)]
)
def test_boards_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, count: int) -> None:
    paths = [write(tmp_path, name, replace(accuracy("arc", 0.5), task_version=name)) for name in ("1", "2")]
    monkeypatch.setattr(boards, limit, count or Path(paths[0], RECORD_FILE).stat().st_size)
    found = read_boards(str(tmp_path), paths)
    assert len(found.boards) == 1 and "narrow the prefix" in found.problems[0]
