"""Curves of metrics files that are long, grow, or are broken."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tradewind.recipes.metrics import curves
from tradewind.recipes.metrics.curves import down_sample, read_curves


def lines(*rows: Any) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def row(step: int, loss: Any = 1.0, **more: Any) -> dict[str, Any]:
    return {"step": step, "time": 100.0 + step, "train/loss": loss, **more}


def points(path: Path, name: str = "train/loss", after: str = "") -> list[tuple[int, float | None]]:
    found = read_curves(str(path), [name], after)
    assert found is not None
    return [pair for each in found.curves for pair in zip(each.steps, each.values, strict=True)]


def test_later_line_of_a_repeated_step_counts(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(lines(row(0, 5.0), row(1, 4.0), row(2, 3.9), row(1, 4.5), row(2, float("nan"))) + '{"step": 3, "tr')
    assert points(file) == [(0, 5.0), (1, 4.5), (2, None)]


def test_lines_that_are_no_rows_are_ignored(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    odd = ["", "[1]", "{", '{"step": -1}', '{"step": true}', '{"step": 1.5}', "[" * 9000, '"x"', "\x00"]
    odd += ['{"step": 2, "train/loss": "low"}', '{"step": 3, "train/loss": true}', '{"step": 4, "train/loss": null}']
    file.write_text(lines(*odd, row(7, 2.0), {"step": 8, "train/loss": 10**400, "x" * 300: 1}))
    found = read_curves(str(file))
    assert found is not None and found.names == ("train/loss",)
    assert points(file) == [(7, 2.0)]


def test_losses_are_shown_unless_other_names_are_given(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(lines(*(row(step, **{"a": 1, "eval/loss": 2, "throughput": 3}) for step in range(3))))
    found, chosen = read_curves(str(file)), read_curves(str(file), ["throughput", "unknown"])
    assert found is not None and found.names == ("train/loss", "eval/loss", "a", "throughput")
    assert [each.name for each in found.curves] == ["train/loss", "eval/loss"]
    assert chosen is not None and [each.name for each in chosen.curves] == ["throughput"]
    assert (found.last_step, found.last_at, found.rows) == (2, 102.0, 3)


def test_reads_continue_where_the_last_one_ended(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(lines(row(0), row(1)) + '{"step": 2, "train')
    first = read_curves(str(file))
    assert first is not None and first.is_new and first.rows == 2
    with file.open("a") as more:
        more.write('/loss": 3.0}\n')
    second = read_curves(str(file), ["train/loss"], first.place)
    assert second is not None and not second.is_new and second.curves[0].steps == (2,)
    idle = read_curves(str(file), ["train/loss"], second.place)
    assert idle is not None and not idle.is_new and (idle.rows, idle.place) == (0, second.place)
    file.write_text(lines(row(9)))
    again = read_curves(str(file), ["train/loss"], second.place)
    assert again is not None and again.is_new and again.curves[0].steps == (9,)
    file.write_text(lines(row(8), *(row(step) for step in range(9, 400))))
    longer = read_curves(str(file), ["train/loss"], again.place)
    assert longer is not None and longer.is_new and longer.rows == 392
    odd = read_curves(str(file), ["train/loss"], "7@x")
    assert odd is not None and odd.is_new


def test_large_file_is_read_by_ranges_within_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "MAX_BYTES", 100_000)
    monkeypatch.setattr(curves, "_TAIL_BYTES", 20_000)
    file = tmp_path / "metrics.jsonl"
    file.write_text(lines(*(row(step, float(step)) for step in range(50_000))))
    found = read_curves(str(file), ["train/loss"])
    assert found is not None and found.sampled and found.rows < 3000
    steps, values = found.curves[0].steps, found.curves[0].values
    assert len(steps) <= 2000 and list(steps) == list(values) == sorted(steps)
    assert steps[0] == 0 and steps[-1] == found.last_step == 49_999
    assert max(after - before for before, after in zip(steps, steps[1:], strict=False)) < 50_000 / 32 + 100
    assert found.place.startswith(f"{file.stat().st_size}@")


def test_down_sampling_keeps_peaks_gaps_and_ends() -> None:
    values: list[tuple[int, float | None]] = [(step, 1.0) for step in range(100_000)]
    values[70_001], values[33_333], values[50] = (70_001, 99.0), (33_333, -5.0), (50, None)
    kept = down_sample(values)
    assert len(kept) <= 2000 and kept == sorted(kept, key=lambda pair: pair[0])
    assert {(70_001, 99.0), (33_333, -5.0), (50, None), values[0], values[-1]} <= set(kept)
    assert down_sample(values[:10]) == values[:10] and down_sample([]) == []


def test_what_is_no_file_has_no_curves(tmp_path: Path) -> None:
    assert read_curves(str(tmp_path / "metrics.jsonl")) is None
    assert read_curves(str(tmp_path / "no" / "metrics.jsonl")) is None
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/hostname")
    for name in ("pipe", "link", "."):
        with pytest.raises(ValueError, match="cannot be read, because it is"):
            read_curves(str(tmp_path / name))
    (tmp_path / "empty").write_text("")
    empty = read_curves(str(tmp_path / "empty"))
    assert empty is not None and empty.curves == () and empty.rows == 0
