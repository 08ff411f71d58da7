"""Run files by another author: none blocks the comparison of the others or injects text into the page."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.comparing.ended_runs import write_run
from tradewind.recipes.comparing.compare import CompareConfig, compare_runs
from tradewind.recipes.comparing.reading import MAX_NUMBERS, read_runs
from tradewind.recipes.comparing.runs import MissingRunsError, escape_math, is_drawable, is_positive
from tradewind.recipes.metrics.file import MAX_VALUES, parse_metrics, read_bounded_metrics, read_metrics, series
from tradewind.recipes.speedruns.board import LeaderboardConfig, write_leaderboard
from tradewind.recipes.train_config import metrics_path
from tradewind.records.info_files import INFO_FILE

pytestmark = pytest.mark.slow

HUGE = 10**400
GOOD = {"eval_loss": 1.5, "model_flops": 1e9}


def compared(folder: Path, **runs: str) -> dict[str, Any]:
    return compare_runs(CompareConfig({"good": write_run(folder, "good", GOOD), **runs}, str(folder / "out")))


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 1, "eval/loss": "x"}',
        '{"step": 1, "eval/loss": null}',
        f'{{"step": 1, "eval/loss": {HUGE}}}',
        f'{{"step": {HUGE}, "eval/loss": 1.0}}',
        '{"step": 1, "eval/loss": -1e308}\n{"step": 2, "eval/loss": 1e308}',
    ],
)
def test_invalid_metrics_do_not_block_comparison(tmp_path: Path, line: str) -> None:
    assert compared(tmp_path, odd=write_run(tmp_path, "odd", GOOD | {"eval_loss": 2.0}, curve=line))["best"] == "good"
    assert (tmp_path / "out" / "comparison.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("value", [1.7e308, -1.7e308, 5e-324])
def test_number_beyond_any_axis_is_only_in_table(tmp_path: Path, value: float) -> None:
    odd = write_run(tmp_path, "odd", {"eval_loss": value, "model_flops": value})
    assert compared(tmp_path, odd=odd)["runs"]["odd"] == value
    runs = {"good": str(next(tmp_path.glob("good-*"))), "odd": odd}
    assert not is_drawable(value) and not is_positive(value)
    write_leaderboard(LeaderboardConfig(runs, str(tmp_path / "board")))
    assert (tmp_path / "board" / "leaderboard.png").exists()


def test_integer_beyond_float_and_large_file_are_no_result(tmp_path: Path) -> None:
    with pytest.raises(MissingRunsError, match=r"1 of 2 runs have no result: odd \(returned no 'eval_loss'"):
        compared(tmp_path, odd=write_run(tmp_path, "odd", {"eval_loss": HUGE, "n": 1}))
    large = write_run(tmp_path, "large", GOOD)
    os.truncate(Path(large, ".artifact.json"), 3 << 30)
    with pytest.raises(MissingRunsError, match=r"large \(its result is not read, because it has more than 4,194,304"):
        compared(tmp_path / "other", large=large)


def test_columns_of_a_run_are_bounded(tmp_path: Path) -> None:
    many = write_run(tmp_path, "many", {f"{'k' * 1000}{number}\x1b": number for number in range(1000)})
    [run], _ = read_runs({"many": many})
    assert len(run.results) <= MAX_NUMBERS
    assert all(name.isprintable() and len(name) <= 300 for name in run.results)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", {"config": {"a": 1}, "dependencies": 5}),
        ("version", {"config": [1], "dependencies": [1, [2], {"config": {"\x1b[2J": 1}}]}),
        ("dependencies", ["::", "gs://::x", "\0", "ftp://x/y", "/nowhere"]),
    ],
)
def test_invalid_info_file_does_not_block_comparison(tmp_path: Path, field: str, value: Any) -> None:
    odd = write_run(tmp_path, "odd", GOOD)
    Path(odd, INFO_FILE).write_text(json.dumps({"name": "odd", field: value}))
    compared(tmp_path, odd=odd)
    assert "\x1b" not in (tmp_path / "out" / "comparison.md").read_text()


def test_metrics_pipe_link_or_many_values_are_not_read(tmp_path: Path) -> None:
    odd, linked = write_run(tmp_path, "odd", GOOD), write_run(tmp_path, "linked", GOOD)
    long = write_run(tmp_path, "long", GOOD, curve='{"step": 1, "eval/loss": 1.0}\n' * (MAX_VALUES // 2 + 1))
    with pytest.raises(ValueError, match=r"long.*/metrics.jsonl is not read, because it has more than 2,097,152 val"):
        read_bounded_metrics(metrics_path(long))
    os.mkfifo(Path(odd, "metrics.jsonl"))
    elsewhere = tmp_path / "elsewhere.jsonl"
    elsewhere.write_text('{"step": 1, "eval/loss": 1.0}')
    Path(linked, "metrics.jsonl").symlink_to(elsewhere)
    runs, _ = read_runs({"odd": odd, "linked": linked, "long": long})
    assert [run.curve for run in runs] == [((), ())] * 3


def test_long_lines_numbers_and_other_bytes_are_skipped(tmp_path: Path) -> None:
    long = f'{{"step": 1, "a": [{"1, " * 100_000}1]}}'
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(f'{long}\n{{"step": {"9" * 5000}}}\n'.encode() + b'\xff\xfe\n{"step": 2}\n{"step": 3}')
    assert read_metrics(str(file)) == [{"step": 2}, {"step": 3}]
    assert parse_metrics(f'{long}\n{{"step": 2}}') == [{"step": 2}]


@pytest.mark.parametrize("label", [r"$\frac{$", "a $b$ c", "_hidden", "x" * 5000])
def test_label_is_drawn_literally(tmp_path: Path, label: str) -> None:
    runs = {label: write_run(tmp_path, "one", GOOD), "other": write_run(tmp_path, "two", GOOD)}
    compare_runs(CompareConfig(runs, str(tmp_path / "out"), title=label))
    write_leaderboard(LeaderboardConfig(runs, str(tmp_path / "board"), title=label))
    assert escape_math(label).replace(r"\$", "").count("$") == 0 and len(escape_math(label)) <= 120


def test_author_text_escaped_in_page_csv_and_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    author = {"name": "=HYPERLINK(1)\x1b[2J", "url": 7}
    told = f"<img src=x onerror=alert(1)> [x](javascript:1) {'y' * 10_000}\x1b]0;x\x07"
    run = write_run(tmp_path, "run", GOOD | {"author": author, "description": told})
    odd = write_run(tmp_path, "odd", GOOD | {"author": "Ada", "description": 7})
    write_leaderboard(LeaderboardConfig({"run": run, "odd": odd}, str(tmp_path / "out")))
    page = (tmp_path / "out" / "leaderboard.md").read_text()
    assert r"\<img" in page and r"\[x\](javascript" in page and "y" * 301 not in page
    assert "\x1b" not in page + capsys.readouterr().out
    row, other = list(csv.DictReader((tmp_path / "out" / "leaderboard.csv").open()))
    assert row["author"] == "'=HYPERLINK(1)?[2J" and row["eval_loss"] == "1.5"
    assert other["author"] == other["description"] == ""


def test_series_has_only_finite_numbers() -> None:
    rows = parse_metrics('{"step": -1, "a": 1}\n{"step": true, "a": 1}\n{"step": 1, "a": true}\n{"step": 2, "a": NaN}')
    assert [row["step"] for row in rows] == [1, 2]
    assert series(rows, "a")[0] == [2]
    assert not is_drawable(float("nan")) and not is_drawable(HUGE) and is_drawable(0)
