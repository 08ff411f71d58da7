"""Windows of books, what is kept of them, and how they are shown; no model is loaded."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tradewind.evaluation.probextraction import (
    _kept,
    byte_offsets,
    numbers_of,
    strip_of,
    summary,
    svg,
    windows_of,
)
from tradewind.evaluation.scoring import write_columns
from tradewind.evaluation.token_sets import TokenSet

TEXTS = TokenSet(np.arange(20), np.array([0, 10, 13, 13]), ["book", "short", "empty", "other"])
SILENT = np.isin(np.arange(20), [0, 8, 9, 19])
"""A token that begins a text, the space and the token that end it."""


def test_windows_lie_inside_the_spoken_tokens_of_texts() -> None:
    windows = windows_of(TEXTS, SILENT, 4, 2)
    assert windows.begins.tolist() == [1, 3, 13, 15]
    assert (windows.documents.tolist(), windows.too_short) == ([0, 0, 3, 3], ["short", "empty"])
    assert len(windows_of(TEXTS, np.ones(20, bool), 4, 2).begins) == 0


def test_offsets_are_bytes_of_each_text() -> None:
    spelled = np.where(SILENT, 0, 2)
    assert byte_offsets(TEXTS, spelled).tolist() == [
        0, 0, 2, 4, 6, 8, 10, 12, 14, 14, 0, 2, 4, 0, 2, 4, 6, 8, 10, 12,
    ]  # fmt: skip


def test_numbers_say_which_share_reaches_a_probability() -> None:
    windows = windows_of(TEXTS, SILENT, 4, 2)
    numbers = numbers_of(np.log([0.95, 0.5, 0.01, 1e-9]), windows)
    assert list(numbers["share_above"].values()) == [0.75, 0.75, 0.5, 0.5, 0.25]
    assert (numbers["windows"], numbers["documents"], numbers["too_short"]) == (4, 2, 2)
    assert numbers["max_probability"] == pytest.approx(0.95)
    assert r"| \<b> | 4 | 75 % | 75 % | 50 % | 50 % | 25 % | 0.95 |" in summary({"<b>": numbers})


def test_strip_has_the_likeliest_suffix_of_each_cell() -> None:
    strip = strip_of(np.array([0, 2, 8]), 2, np.array([-1.0, -3.0, -2.0]), 10)
    assert strip.tolist() == [-1, -1, -3, -3] + [-math.inf] * 4 + [-2, -2]
    assert len(strip_of(np.array([0]), 5, np.array([0.0]), 10_000)) == 400
    picture = svg("<script>", strip)
    assert picture.count("<rect") == 1 + 6 and "<script>" not in picture and 'fill-opacity="0.928"' in picture


def test_shard_of_other_windows_or_cut_is_measured_again(tmp_path: Path) -> None:
    path = str(tmp_path / "part.parquet")
    begins = np.array([1, 3])
    assert _kept(path, begins) is None
    write_columns(path, {"document": ["a", "a"], "token": [1, 3], "position": [1, 3], "log_prob": [-1.0, -2.0]})
    found = _kept(path, begins)
    assert found is not None and found.tolist() == [-1.0, -2.0]
    assert _kept(path, np.array([1, 4])) is None
    Path(path).write_bytes(Path(path).read_bytes()[:-9])
    assert _kept(path, begins) is None
