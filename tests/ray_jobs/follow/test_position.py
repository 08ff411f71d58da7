"""Log positions: a reader that rereads a log from its first byte emits each line once."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tradewind.ray_jobs.follow.log_lines import MAX_LINE_CHARS, LineReader, LogPosition

pytestmark = pytest.mark.slow

LINES = st.lists(st.text(st.characters(exclude_characters="\n\r"), max_size=5), max_size=20)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted(cut % (len(text) + 1) for cut in cuts)
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def read(pieces: list[str], start: LogPosition) -> list[str]:
    reader = LineReader(start)
    return [line for piece in pieces for line in reader.lines(piece)] + reader.last_line()


def position_after(lines: list[str]) -> LogPosition:
    position = LogPosition()
    for line in lines:
        position = position.after(line)
    return position


@given(LINES, st.integers(0, 20), st.lists(st.integers(0, 200), max_size=5))
@example(["", "", "a", "", ""], 4, [])
@example(["a", "b"], 1, [1])
def test_a_second_reading_goes_on_where_the_first_one_stopped(
    lines: list[str], given_before: int, cuts: list[int]
) -> None:
    given_before = min(given_before, len(lines))
    pieces = pieces_of("".join(f"{line}\n" for line in lines), cuts)
    assert read(pieces, position_after(lines[:given_before])) == lines[given_before:]


@given(LINES, st.integers(0, 20), st.lists(st.booleans(), min_size=20, max_size=20), st.data())
def test_a_newline_that_is_read_as_two_costs_no_line(
    lines: list[str], given_before: int, doubled: list[bool], data: st.DataObject
) -> None:
    def reading(doubled: list[bool]) -> str:  # Ray returns a CRLF at the end of a read as two newlines
        return "".join(line + ("\n\n" if twice else "\n") for line, twice in zip(lines, doubled, strict=False))

    first = read([reading(doubled)], LogPosition())
    given_before = min(given_before, len(first))
    again = reading(data.draw(st.lists(st.booleans(), min_size=20, max_size=20)))
    rest = read([again], position_after(first[:given_before]))
    whole = [line for line in first[:given_before] + rest if line]
    assert whole == [line for line in lines if line]


def test_unterminated_last_line_is_emitted_once_after_resume() -> None:
    position = position_after(read(["a\nb"], LogPosition()))
    assert read(["a\nb\nc\n"], position) == ["c"]


def test_a_line_without_end_comes_in_parts_and_no_part_twice() -> None:
    text = "x" * (MAX_LINE_CHARS + 10) + "\nend\n"
    parts = read(pieces_of(text, list(range(0, len(text), 50_000))), LogPosition())
    assert [len(part) for part in parts] == [MAX_LINE_CHARS, 10, 3]
    assert read([text], position_after(parts[:1])) == parts[1:]


@given(st.builds(LogPosition, st.integers(0), st.integers(0), st.integers(0), st.booleans()))
def test_a_position_survives_being_stored(position: LogPosition) -> None:
    assert LogPosition.from_json(json.loads(json.dumps(position.to_json()))) == position


def test_no_stored_position_means_the_start() -> None:
    assert LogPosition.from_json(None) == LogPosition() == LogPosition.from_json({"of a later version": 1})
