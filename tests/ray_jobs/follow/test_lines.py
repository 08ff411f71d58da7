"""Job log lines reach the reader once and in order, in batches and within a byte budget."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.ray_jobs.follow.log_lines import BATCH_S, FlushSchedule, JobLog, LogPosition, parse_progress_bar
from tradewind.ray_jobs.follow.log_reader import LAST_LINES, LogEnd


class Reader:
    """Receiver of the lines, with a manual clock."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.now = 0.0

    def give(self, lines: Sequence[str]) -> None:
        self.batches.append(list(lines))

    @property
    def lines(self) -> list[str]:
        return [line for batch in self.batches for line in batch]

    def log(self, start: LogPosition = LogPosition(), max_bytes: int | None = None, full_log: str = "") -> JobLog:  # noqa: B008
        return JobLog(self.give, start, max_bytes, full_log, clock=lambda: self.now)


def bar(done: int) -> str:
    return f"{done:3}%|{'#' * (done // 10):10}| {done}/100 [00:01<00:02, 31.20it/s]"


def test_lines_that_come_together_are_given_together() -> None:
    reader = Reader()
    log = reader.log()
    log.read("a\nb\n")
    reader.now += BATCH_S / 2
    log.read("c\n")
    assert reader.batches == [] and log.position == LogPosition()
    reader.now += BATCH_S / 2
    log.tick()
    assert reader.batches == [["a", "b", "c"]]
    assert log.position.chars == 3


def test_logs_that_share_a_pace_give_together_and_not_too_often() -> None:
    reader, pace = Reader(), FlushSchedule(2.0)
    moments: list[float] = []
    logs = [JobLog(reader.give, schedule=pace, clock=lambda: reader.now) for _ in range(3)]
    for tenth in range(100):  # each of three logs gets one line per second, at different times
        reader.now = tenth / 10
        if tenth % 10 in (0, 3, 6):
            logs[tenth % 10 // 3].read(f"{tenth}\n")
        before = len(reader.batches)
        for log in logs:
            log.tick()
        moments += [reader.now] * (len(reader.batches) - before)
    assert moments == [0.2, *[moment for moment in (2.2, 4.2, 6.2, 8.2) for _ in logs]], "the first one as soon as ever"
    assert reader.lines[:7] == ["0", "10", "20", "3", "13", "6", "16"]


def test_a_line_after_a_pause_does_not_wait_for_the_pace() -> None:
    reader, pace = Reader(), FlushSchedule(2.0)
    log = JobLog(reader.give, schedule=pace, clock=lambda: reader.now)
    for reader.now in (0.0, 7.0):
        log.read("a\n")
        assert log.wait_s() == pytest.approx(BATCH_S)
        reader.now += BATCH_S
        log.tick()
    assert reader.batches == [["a"], ["a"]]


def test_a_line_waits_for_its_newline_or_the_end() -> None:
    reader = Reader()
    log = reader.log()
    log.read("a\nb")
    log.flush()
    assert reader.lines == ["a"]
    log.finish()
    assert reader.lines == ["a", "b"]


def test_lines_that_could_not_be_given_do_not_count_as_given() -> None:
    def refuse(lines: Sequence[str]) -> None:
        raise OSError("disk full")

    log = JobLog(refuse)
    log.read("a\n")
    with pytest.raises(OSError, match="disk full"):
        log.flush()
    assert log.position == LogPosition()


def test_a_hidden_line_is_not_given() -> None:
    reader = Reader()
    log = reader.log()
    log.hide_lines_starting_with("RESULT ")
    log.read("a\nRESULT 1\n RESULT 2\n")
    log.finish()
    assert reader.lines == ["a", " RESULT 2"]


def test_what_is_over_the_budget_is_told_of_once() -> None:
    reader = Reader()
    log = reader.log(max_bytes=6, full_log="gs://bucket/log.txt")
    log.read("aa\nbb\ncc\ndd\n")
    log.flush()
    assert reader.lines[:2] == ["aa", "bb"]
    assert "full log at gs://bucket/log.txt" in reader.lines[2]
    assert log.is_cut
    stored = LogPosition.from_json(json.loads(json.dumps(log.position.to_json())))
    again = reader.log(stored, max_bytes=6)
    assert again.is_cut
    again.read("aa\nbb\ncc\ndd\nee\n")
    again.finish()
    assert len(reader.lines) == 3


def test_the_budget_counts_what_was_given_before() -> None:
    reader = Reader()
    first = reader.log(max_bytes=8)
    first.read("aa\nbb\n")
    first.flush()
    again = reader.log(first.position, max_bytes=8)
    again.read("aa\nbb\ncc\n")
    again.finish()
    assert reader.lines[:2] == ["aa", "bb"] and len(reader.lines) == 3 and again.is_cut


TEXTS = st.lists(st.sampled_from(["a\n", "bb\n", "\n", "R 1\n", "c", *(f"\n{bar(n)}" for n in (1, 2, 3))]), max_size=30)


@pytest.mark.slow
@given(TEXTS, st.lists(st.tuples(st.integers(0, 12), st.sampled_from([0.0, 0.1, 0.3, 40.0])), max_size=40))
def test_whoever_goes_on_at_a_position_gives_what_is_missing(texts: list[str], turns: list[tuple[int, float]]) -> None:
    """Readers that stop anywhere emit each line once if each continues at its predecessor's position."""
    text, reader = "".join(texts), Reader()
    whole = Reader()
    reference = whole.log()
    reference.read(text)
    reference.finish()
    position = LogPosition()
    for length, pause_s in turns:  # each turn is a process that dies after some time
        log = reader.log(position)
        log.begin()
        for start in range(0, min(length * 5, len(text)), 5):
            log.read(text[start : start + 5])
            reader.now += pause_s
            log.tick()
        position = log.position
    last = reader.log(position)
    last.read(text)
    last.finish()
    assert ordinary(reader.lines) == ordinary(whole.lines)
    assert [line for line in reader.lines if line in whole.lines and parse_progress_bar(line)] != [] or not any(
        parse_progress_bar(line) for line in whole.lines
    )


def ordinary(lines: list[str]) -> list[str]:
    return [line for line in lines if line and not parse_progress_bar(line)]


@given(TEXTS, st.lists(st.integers(0, 30), max_size=5))
def test_a_stream_that_is_opened_again_repeats_nothing(texts: list[str], stops: list[int]) -> None:
    text, reader, whole = "".join(texts), Reader(), Reader()
    reference = whole.log()
    reference.read(text)
    reference.finish()
    log = reader.log()
    for stop in stops:
        log.begin()
        log.read("".join(texts[:stop]))
    log.begin()
    log.read(text)
    log.finish()
    assert reader.lines == whole.lines
    assert log.position == reference.position


def test_the_end_of_a_log_is_its_last_lines_and_its_result() -> None:
    end = LogEnd("R ")
    for number in range(200):
        end.read(f"line {number}\n")
    end.read("R 1\nR {2}\n" + "".join(f"{bar(n)}\n" for n in range(101)) + "x" * 5000)
    end.finish()
    assert end.result == "{2}"
    assert len(end.last_lines) == LAST_LINES
    assert end.last_lines[-3:-1] == ("line 199", bar(100))
    assert end.last_lines[-1] == "x" * 2000 + "..."
