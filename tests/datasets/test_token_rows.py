"""Rows of files with byte order marks, line endings and encodings of all kinds."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tradewind.datasets.token_rows import WHOLE, Span, TokenizingError, _groups, rows_of, spans_of

BOM = b"\xef\xbb\xbf"
LISTED = b'[{"text": "a"},\n{"text": "b"}]'


def rows(path: Path, content: bytes) -> list[tuple[int, str]]:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return [(number, row["text"]) for number, row in rows_of(str(path), "text")]


@pytest.mark.parametrize("name", ["a.json", "of.jsonl/a.json"])
@pytest.mark.parametrize("mark", [b"", BOM])
def test_json_list_read_with_and_without_mark(tmp_path: Path, name: str, mark: bytes) -> None:
    assert rows(tmp_path / name, mark + LISTED) == [(1, "a"), (2, "b")]


def test_marks_and_line_endings_are_no_part_of_row(tmp_path: Path) -> None:
    lines = '{"text": "a\u2028b\x85"}\r\n \r\n{"text": "c"}'.encode()
    assert rows(tmp_path / "a.jsonl", BOM + lines) == [(1, "a\u2028b\x85"), (3, "c")]
    assert rows(tmp_path / "empty.jsonl", BOM) == []


def with_long_window(data: bytes) -> bytes:
    """Compress as ``zstd --long=28`` does, without a content size, so that the frame needs its whole window."""
    settings = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    stream = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    return stream.compress(data) + stream.flush()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "jsonl.gz": gzip.compress,
    "jsonl.zst": lambda data: pa.compress(data, "zstd", asbytes=True),
    "jsonl.zstd": with_long_window,
}
TINY = zstandard.ZstdCompressor().compress(b'{"text": "a"}\n')


def test_zstd_frames_of_any_window_follow_each_other(tmp_path: Path) -> None:
    long = with_long_window(b'{"text": "a"}\n')
    for content in (long + 20_000 * TINY, 20_000 * TINY + long):
        assert len(rows(tmp_path / "a.jsonl.zst", content)) == 20_001


@pytest.mark.parametrize("ending", PACKERS)
def test_multi_member_archive_is_read_whole_or_refused_if_cut(tmp_path: Path, ending: str) -> None:
    texts = [(number, f"text {number}") for number in range(1, 9)]
    lines = [json.dumps({"text": text}).encode() + b"\n" for _, text in texts]
    pack = PACKERS[ending]
    first, second = pack(b"".join(lines[:4])), pack(b"".join(lines[4:]))
    assert rows(tmp_path / f"a.{ending}", first + second) == texts
    for cut in range(1, len(second)):
        with pytest.raises(TokenizingError, match="cannot be read on after line"):
            rows(tmp_path / f"a.{ending}", first + second[:cut])


@pytest.mark.slow
def test_column_without_utf_8_refused_with_file(tmp_path: Path) -> None:
    ends = pa.array([0, 1], pa.int32()).buffers()[1]
    text = pa.StringArray.from_buffers(1, ends, pa.py_buffer(b"\xff"))
    parquet.write_table(pa.table({"text": text}), tmp_path / "a.parquet")
    with pytest.raises(TokenizingError, match="a.parquet cannot be read on after row 0: 'utf-8' codec"):
        list(rows_of(str(tmp_path / "a.parquet"), "text"))


def rows_by_spans(path: Path, max_bytes: int) -> list[list[tuple[int, str]]]:
    spans = spans_of(str(path), path.stat().st_size, max_bytes)
    return [[(number, row["text"]) for number, row in rows_of(str(path), "text", span)] for span in spans]


LINES = st.lists(st.sampled_from(["", " ", '{"text": "a"}', '{"text": "b\u00e9\U0001f600"}', '{"text": "longer"}']))


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(content=LINES, end=st.sampled_from(["\n", "\r\n"]), mark=st.sampled_from([b"", BOM]), at=st.integers(1, 60))
def test_adjacent_line_spans_yield_each_line_once_at_any_cut(
    tmp_path_factory: pytest.TempPathFactory, content: list[str], end: str, mark: bytes, at: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    whole = [text for _, text in rows(path, mark + end.join(content).encode())]
    assert [text for found in rows_by_spans(path, at) for _, text in found] == whole


def test_malformed_line_in_span_is_reported_with_byte_offset(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = b'{"text": "a"}\r\n\n'
    path.write_bytes(good * 9 + b"{cut")
    for at in range(1, len(good) * 9 + 1):
        with pytest.raises(TokenizingError, match=rf"a.jsonl line at byte {len(good) * 9} is malformed: "):
            list(rows_of(str(path), "text", Span(at)))
    with pytest.raises(TokenizingError, match="a.jsonl line 19 is malformed: "):
        list(rows_of(str(path), "text"))


def test_unreadable_file_refused_with_place(tmp_path: Path) -> None:
    for name, span, place in (
        ("a.jsonl", WHOLE, "line 0"),
        ("a.jsonl", Span(10), "line at byte 10"),
        ("a.parquet", WHOLE, "row 0"),
    ):
        with pytest.raises(TokenizingError, match=rf"{name} cannot be read on after {place}: .*No such file"):
            list(rows_of(str(tmp_path / name), "text", span))


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(count=st.integers(0, 12), group=st.integers(1, 5), at=st.integers(50, 1500))
@example(count=12, group=5, at=50)
def test_parquet_spans_yield_each_row_once_with_file_row_number(
    tmp_path_factory: pytest.TempPathFactory, count: int, group: int, at: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.parquet"
    texts = [f"text {number}" for number in range(count)]
    parquet.write_table(pa.table({"other": range(count), "text": texts}), path, row_group_size=group)
    found = rows_by_spans(path, at)
    assert [row for rows in found for row in rows] == list(enumerate(texts, start=1))
    assert at > 50 or max(map(len, found)) <= group, "a group has more bytes"


def test_row_groups_out_of_order_keep_their_rows() -> None:
    """The format allows this order, but no writer in the test environment makes it."""
    pages = [4, 900, 500, 1000]
    groups = [
        SimpleNamespace(
            num_columns=1,
            num_rows=2,
            column=lambda _, at=at: SimpleNamespace(dictionary_page_offset=None, data_page_offset=at),
        )
        for at in pages
    ]
    metadata = SimpleNamespace(num_row_groups=4, row_group=groups.__getitem__)
    assert [_groups(metadata, span) for span in spans_of("a.parquet", 1200, 600)] == [([0], 0), ([1, 2, 3], 2)]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.json"])
def test_compressed_file_is_one_span(name: str) -> None:
    assert spans_of(name, 10**12, 1) == [WHOLE]
