"""Log folding keeps the last state of a progress bar and changes no other line."""

from __future__ import annotations

import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.ray_jobs.follow.log_lines import SHOW_INTERVAL_S, ProgressBarFilter, parse_progress_bar

STATES = [
    "train:  42%|####2     | 42/100 [00:01<00:02, 31.20it/s]",
    " 42%|████▏     | 42/100 [00:01<00:02, 31.20it/s, loss=0.3]",
    "100%|██████████| 1.20G/1.20G [01:01:20<00:00, 31.2MB/s]",
    "  0%|          | 0/100 [00:00<?, ?it/s]",
    "rows: 1234rows [00:12, 99.70rows/s]",
    "42/100 [===========>..................] - ETA: 3s - loss: 0.2",
    "\x1b[1m42/100\x1b[0m \x1b[32m━━━━━━━━━━\x1b[0m\x1b[37m━━\x1b[0m \x1b[1m3s\x1b[0m 10ms/step - loss: 0.2",
]
ORDINARY = [
    "loss 3%",
    "epoch 3: 42% | 42/100",
    "| a | 50% | 3/4 |",
    "INFO 12:01 [00:01, info] read /tmp/x at 3 it/s",
    "step 42/100 [done]",
    "wrote 3files [see /tmp]",
    "",
    "2/3",
]


@pytest.mark.parametrize("line", STATES)
def test_a_state_of_a_bar_is_known_by_its_shape(line: str) -> None:
    assert parse_progress_bar(line) is not None


@pytest.mark.parametrize("line", ORDINARY)
def test_an_ordinary_line_is_no_bar(line: str) -> None:
    assert parse_progress_bar(line) is None


def folded(lines: list[str], step_s: float = 0.0) -> list[str]:
    fold, clock = ProgressBarFilter(), itertools.count()
    shown = []
    for line in lines:
        now = next(clock) * step_s
        shown += fold.add(line, now)
        shown += fold.show(now)
    return shown + fold.end()


def bar(done: int, what: str = "train") -> str:
    return f"{what}: {done:3}%|{'#' * (done // 10):10}| {done}/100 [00:01<00:02, 31.20it/s]"


def test_only_the_last_state_is_left() -> None:
    assert folded(["a", *map(bar, range(101)), "b"]) == ["a", bar(100), "b"]


def test_the_last_state_comes_before_the_next_line() -> None:
    assert folded([bar(1), bar(2), "a", bar(3), bar(4), "b"]) == [bar(2), "a", bar(4), "b"]


def test_a_bar_that_starts_again_is_another_bar() -> None:
    assert folded([bar(50), bar(100), bar(0), bar(70)]) == [bar(100), bar(70)]


def test_two_bars_are_not_mixed_up() -> None:
    assert folded([bar(1, "a"), bar(2, "a"), bar(3, "b")]) == [bar(2, "a"), bar(3, "b")]


def test_a_long_bar_is_shown_now_and_then() -> None:
    shown = folded([bar(n) for n in range(101)], step_s=1.0)
    assert shown == [bar(n) for n in (30, 60, 90, 100)]
    assert SHOW_INTERVAL_S == 30


def test_empty_lines_between_the_states_of_a_bar_go_with_them() -> None:
    assert folded([bar(1), "", bar(2), "", "\x1b[A", bar(3), "", "a"]) == [bar(3), "", "a"]


def test_what_tqdm_really_writes_is_folded() -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    out = io.StringIO()
    for _ in tqdm(range(300), desc="load", file=out, mininterval=0, ascii=True):
        pass
    for _ in tqdm(iter(range(300)), desc="rows", unit="row", file=out, mininterval=0):
        pass
    lines = out.getvalue().replace("\r", "\n").split("\n")
    assert len(lines) > 500
    shown = [line for line in folded(lines) if line]
    assert len(shown) == 2
    assert "300/300" in shown[0] and "300row" in shown[1]


@given(st.lists(st.sampled_from(["a", "b", "", "50%", *map(bar, (1, 2, 3))])))
def test_ordinary_lines_all_come_in_their_order(lines: list[str]) -> None:
    shown = folded(lines, step_s=7.0)
    assert [line for line in shown if line and not parse_progress_bar(line)] == [
        line for line in lines if line and not parse_progress_bar(line)
    ]
    assert not parse_progress_bar(lines[-1]) or shown[-1] == lines[-1] if lines else not shown
