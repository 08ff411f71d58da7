"""Job log lines reach the reader once and in order, in batches, within a byte budget and with folded bars."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tradewind.ray_jobs.follow.log_lines import (
    BATCH_S,
    MAX_LINE_CHARS,
    SHOW_INTERVAL_S,
    FlushSchedule,
    JobLog,
    LineReader,
    LogPosition,
    ProgressBarFilter,
    parse_progress_bar,
)
from tradewind.ray_jobs.follow.log_reader import LAST_LINES, JsonLogDecoder, LogEnd

# ---- progress bars

BARS = [
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


@pytest.mark.parametrize("line", [*BARS, *ORDINARY])
def test_progress_bar_is_recognized_by_its_format(line: str) -> None:
    assert (parse_progress_bar(line) is not None) == (line in BARS)


def folded(lines: list[str], step_s: float = 0.0) -> list[str]:
    bars, clock = ProgressBarFilter(), itertools.count()
    shown = []
    for line in lines:
        now = next(clock) * step_s
        shown += bars.add(line, now)
        shown += bars.show(now)
    return shown + bars.end()


def bar(done: int, what: str = "train") -> str:
    return f"{what}: {done:3}%|{'#' * (done // 10):10}| {done}/100 [00:01<00:02, 31.20it/s]"


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["a", *map(bar, range(101)), "b"], ["a", bar(100), "b"]),
        ([bar(1), bar(2), "a", bar(3), bar(4), "b"], [bar(2), "a", bar(4), "b"]),
        ([bar(50), bar(100), bar(0), bar(70)], [bar(100), bar(70)]),  # a restarted bar is another one
        ([bar(1, "a"), bar(2, "a"), bar(3, "b")], [bar(2, "a"), bar(3, "b")]),
        ([bar(1), "", bar(2), "", "\x1b[A", bar(3), "", "a"], [bar(3), "", "a"]),  # nested bars write such lines
    ],
)
def test_each_bar_is_folded_to_its_last_state(lines: list[str], shown: list[str]) -> None:
    assert folded(lines) == shown


def test_long_bar_is_shown_at_intervals() -> None:
    assert folded([bar(n) for n in range(101)], step_s=1.0) == [bar(n) for n in (30, 60, 90, 100)]
    assert SHOW_INTERVAL_S == 30


def test_output_of_tqdm_is_folded() -> None:
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


def ordinary(lines: list[str]) -> list[str]:
    return [line for line in lines if line and not parse_progress_bar(line)]


@given(st.lists(st.sampled_from(["a", "b", "", "50%", *map(bar, (1, 2, 3))])))
def test_ordinary_lines_pass_in_order(lines: list[str]) -> None:
    shown = folded(lines, step_s=7.0)
    assert ordinary(shown) == ordinary(lines)
    assert not parse_progress_bar(lines[-1]) or shown[-1] == lines[-1] if lines else not shown


# ---- batches and budget


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


def test_lines_close_in_time_are_given_together() -> None:
    reader = Reader()
    log = reader.log()
    log.read("a\nb\n")
    reader.now += BATCH_S / 2
    log.read("c\n")
    assert reader.batches == [] and log.position == LogPosition()
    reader.now += BATCH_S / 2
    log.tick()
    log.begin()
    log.read("a\nb\nc\n")
    assert reader.batches == [["a", "b", "c"]]
    assert log.position.chars == 3 and log.taken_at == BATCH_S / 2


def test_logs_that_share_schedule_give_together_and_rarely() -> None:
    reader, schedule = Reader(), FlushSchedule(2.0)
    moments: list[float] = []
    logs = [JobLog(reader.give, schedule=schedule, clock=lambda: reader.now) for _ in range(3)]
    for tenth in range(100):  # each of three logs gets one line per second, at different times
        reader.now = tenth / 10
        if tenth % 10 in (0, 3, 6):
            logs[tenth % 10 // 3].read(f"{tenth}\n")
        before = len(reader.batches)
        for log in logs:
            log.tick()
        moments += [reader.now] * (len(reader.batches) - before)
    assert moments == [0.2, *[moment for moment in (2.2, 4.2, 6.2, 8.2) for _ in logs]], "the first line without delay"
    assert reader.lines[:7] == ["0", "10", "20", "3", "13", "6", "16"]


def test_line_after_pause_is_not_delayed_by_schedule() -> None:
    reader, schedule = Reader(), FlushSchedule(2.0)
    log = JobLog(reader.give, schedule=schedule, clock=lambda: reader.now)
    for reader.now in (0.0, 7.0):
        log.read("a\n")
        assert log.wait_s() == pytest.approx(BATCH_S)
        reader.now += BATCH_S
        log.tick()
    assert reader.batches == [["a"], ["a"]]


def test_line_waits_for_its_newline_or_the_end() -> None:
    reader = Reader()
    log = reader.log()
    log.read("a\nb")
    log.flush()
    assert reader.lines == ["a"]
    log.finish()
    assert reader.lines == ["a", "b"]


def test_lines_refused_by_reader_do_not_count_as_given() -> None:
    def refuse(lines: Sequence[str]) -> None:
        raise OSError("disk full")

    log = JobLog(refuse)
    log.read("a\n")
    with pytest.raises(OSError, match="disk full"):
        log.flush()
    assert log.position == LogPosition()


def test_hidden_line_is_not_given() -> None:
    reader = Reader()
    log = reader.log()
    log.hide_lines_starting_with("RESULT ")
    log.read("a\nRESULT 1\n RESULT 2\n")
    log.finish()
    assert reader.lines == ["a", " RESULT 2"]


def test_cut_at_byte_budget_is_reported_once() -> None:
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


TEXTS = st.lists(
    st.sampled_from(["a\n", "bb\n", "\n", "R 1\n", "c", *(f"\n{bar(n, '')}" for n in (1, 2, 3))]), max_size=30
)


def read_at_once(text: str) -> tuple[list[str], LogPosition]:
    """Return the lines of one uninterrupted reading, and its position."""
    reader = Reader()
    log = reader.log()
    log.read(text)
    log.finish()
    return reader.lines, log.position


@pytest.mark.slow
@given(TEXTS, st.lists(st.tuples(st.integers(0, 12), st.sampled_from([0.0, 0.1, 0.3, 40.0])), max_size=40))
def test_successors_at_position_give_each_missing_line_once(
    texts: list[str], processes: list[tuple[int, float]]
) -> None:
    """Each process reads some text and dies; the next one continues at its position."""
    text, reader, position = "".join(texts), Reader(), LogPosition()
    whole, _ = read_at_once(text)
    for length, pause_s in processes:
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
    assert ordinary(reader.lines) == ordinary(whole)
    bars = [line for line in whole if parse_progress_bar(line)]
    assert not bars or any(line in bars for line in reader.lines)


@given(TEXTS, st.lists(st.integers(0, 30), max_size=5))
def test_reopened_stream_repeats_no_line(texts: list[str], stops: list[int]) -> None:
    text, reader = "".join(texts), Reader()
    log = reader.log()
    for stop in stops:
        log.begin()
        log.read("".join(texts[:stop]))
    log.begin()
    log.read(text)
    log.finish()
    assert (reader.lines, log.position) == read_at_once(text)


def test_log_end_has_last_lines_and_result() -> None:
    end = LogEnd("R ")
    for number in range(200):
        end.read(f"line {number}\n")
    end.read("R 1\nR {2}\n" + "".join(f"{bar(n)}\n" for n in range(101)) + "x" * 5000)
    end.finish()
    assert end.result == "{2}"
    assert len(end.last_lines) == LAST_LINES
    assert end.last_lines[-3:-1] == ("line 199", bar(100))
    assert end.last_lines[-1] == "x" * 2000 + "..."


# ---- positions: a reader that rereads a log from its first byte emits each line once

LINES = st.lists(st.text(st.characters(exclude_characters="\n\r"), max_size=5), max_size=20)
DOUBLED = st.lists(st.booleans(), min_size=20, max_size=20)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted(cut % (len(text) + 1) for cut in cuts)
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def read(pieces: list[str], start: LogPosition = LogPosition()) -> list[str]:  # noqa: B008
    reader = LineReader(start)
    return [line for piece in pieces for line in reader.lines(piece)] + reader.last_line()


def position_after(lines: list[str]) -> LogPosition:
    position = LogPosition()
    for line in lines:
        position = position.after(line)
    return position


@pytest.mark.slow
@given(LINES, st.integers(0, 20), st.lists(st.integers(0, 200), max_size=5))
@example(["", "", "a", "", ""], 4, [])
@example(["a", "b"], 1, [1])
def test_second_reading_continues_at_position(lines: list[str], given_before: int, cuts: list[int]) -> None:
    given_before = min(given_before, len(lines))
    pieces = pieces_of("".join(f"{line}\n" for line in lines), cuts)
    assert read(pieces, position_after(lines[:given_before])) == lines[given_before:]


@pytest.mark.slow
@given(LINES, st.integers(0, 20), DOUBLED, DOUBLED)
def test_newline_read_as_two_loses_no_line(
    lines: list[str], given_before: int, doubled: list[bool], doubled_again: list[bool]
) -> None:
    """Ray returns a CRLF at the end of a read as two newlines."""

    def reading(doubled: list[bool]) -> str:
        return "".join(line + ("\n\n" if twice else "\n") for line, twice in zip(lines, doubled, strict=False))

    first = read([reading(doubled)])[:given_before]
    rest = read([reading(doubled_again)], position_after(first))
    assert [line for line in first + rest if line] == [line for line in lines if line]


def test_unterminated_last_line_is_emitted_once_after_resume() -> None:
    assert read(["a\nb\nc\n"], position_after(read(["a\nb"]))) == ["c"]


def test_very_long_line_comes_in_parts_and_each_once() -> None:
    text = "x" * (MAX_LINE_CHARS + 10) + "\nend\n"
    parts = read(pieces_of(text, list(range(0, len(text), 50_000))))
    assert [len(part) for part in parts] == [MAX_LINE_CHARS, 10, 3]
    assert read([text], position_after(parts[:1])) == parts[1:]


@pytest.mark.slow
@given(st.builds(LogPosition, st.integers(0), st.integers(0), st.integers(0), st.booleans()))
def test_position_survives_json(position: LogPosition) -> None:
    assert LogPosition.from_json(json.loads(json.dumps(position.to_json()))) == position


def test_missing_or_newer_position_is_the_start() -> None:
    assert LogPosition.from_json(None) == LogPosition() == LogPosition.from_json({"of a later version": 1})


# ---- decoding: a stream of pieces gives the text of the whole response

ANY_TEXT = st.text(st.characters(), max_size=60)  # includes lone surrogates and control characters


def decoded(body: bytes, size: int) -> tuple[str, JsonLogDecoder]:
    decoder = JsonLogDecoder()
    return "".join(decoder.text(body[start : start + size]) for start in range(0, len(body), size)), decoder


@given(ANY_TEXT, st.integers(1, 40), st.booleans())
@example("\ud83d\ud83d\ude00\\", 1, True)
@example('\\"\\\\" \U0001f600\ud83d', 3, True)
def test_decoded_text_is_that_of_json_parser(text: str, size: int, ascii_only: bool) -> None:
    if not ascii_only:
        text = text.encode("utf-8", "replace").decode()  # a body in UTF-8 cannot hold a lone surrogate
    body = json.dumps({"logs": text}, ensure_ascii=ascii_only).encode()
    result, decoder = decoded(body, size)
    assert result == json.loads(body)["logs"]
    assert decoder.has_ended


@given(ANY_TEXT, st.integers(1, 40))
def test_truncated_response_is_recognized(text: str, size: int) -> None:
    body = json.dumps({"logs": text}).encode()
    result, decoder = decoded(body[:-2], size)
    assert not decoder.has_ended
    assert json.loads(body)["logs"].startswith(result)


def test_decoder_holds_back_only_incomplete_escape() -> None:
    decoder = JsonLogDecoder()
    decoder.text(b'{"logs": "')
    assert len(decoder.text(b"\\u00e9" * 10_000 + b"\\u00")) == 10_000
    assert decoder.text(b"e9") == "é"


@pytest.mark.parametrize("body", ["<html>" + "x" * 200, json.dumps({"detail": "x" * 200})])
def test_other_response_is_no_log(body: str) -> None:
    with pytest.raises(ValueError, match="no log in a response"):
        decoded(body.encode(), 50)
